"""Writes big Kineto traces of a speculative server in Kineto's own text layout, the same bytes for the same seed.

    python -m benchmarks.kineto_text FOLDER --megabytes 100 --ranks 8 --gzip

Each decode cycle is a draft, a verify and a draft_extend, each one CUDA graph replay, with some eager kernels, CPU operators
and flow rows between: in the proportions of a trace recorded on an H200 (44 % flow rows, 33 % kernels, 390 bytes a row). The
all-reduces run on a stream of their own and partly behind computation.
"""

from __future__ import annotations

import argparse
import gzip
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final

BASE_NS: Final = 1_790_857_026_000_000_000
FIRST_NS: Final = 5_102_342_524_000_000
_ELEMENTWISE: Final = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::{0}<c10::BFloat16>, std::array<char*, {1}ul> >"
    "(int, at::native::{0}<c10::BFloat16>, std::array<char*, {1}ul>)"
)
_UNROLLED: Final = (
    "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::{0}"
    "(at::TensorIteratorBase&)::{{lambda()#3}}::operator()() const::{{lambda()#12}}::operator()() const::"
    "{{lambda(c10::BFloat16)#1}}>(at::TensorIteratorBase&, at::native::{0}(at::TensorIteratorBase&)::{{lambda()#3}}"
    "::operator()() const::{{lambda()#12}}::operator()() const::{{lambda(c10::BFloat16)#1}} const&)::{{lambda(int)#1}}>"
    "(int, at::native::gpu_kernel_impl_nocast<at::native::{0}>)"
)
_NORM: Final = (
    "void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>(__nv_bfloat16*, __nv_bfloat16*, __nv_bfloat16*,"
    " unsigned int, unsigned int, unsigned int, float, float)"
)
_ALLREDUCE: Final = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
_SORT: Final = (
    "void at::native::bitonicSortKVInPlace<2, -1, 16, 16, c10::BFloat16, long, at::native::GTOp<c10::BFloat16, true>, "
    "unsigned int>(at::cuda::detail::TensorInfo<c10::BFloat16, unsigned int>, unsigned int, unsigned int, unsigned int)"
)
LAYER: Final = (
    _NORM,
    "nvjet_tst_64x8_64x16_4x1_v_bz_TNT",
    "void flashinfer::BatchQKApplyRotaryPosIdsCosSinCacheEnhancedKernel<true, 128u, 8u, 16u, __nv_bfloat16, long>"
    "(__nv_bfloat16*, __nv_bfloat16*, float*, long*, unsigned int, unsigned int, unsigned int)",
    _UNROLLED.format("direct_copy_kernel_cuda"),
    "void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4, false, false, cutlass::bfloat16_t>, "
    "false, false, false, false, true, false, true, false>(flash::Flash_fwd_params)",
    "void flash::flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4, false, false, "
    "cutlass::bfloat16_t>, 4, 3, true>(flash::Flash_fwd_params)",
    "nvjet_tst_128x8_64x12_2x1_v_bz_splitK_TNT",
    _ALLREDUCE,
    _NORM,
    "nvjet_tst_16x64_64x16_1x4_h_bz_TNN",
    "void vllm::moe::topkGatingSoftmax<8, 128, 4, 16>(float const*, bool const*, float*, int, int*, int, int, int)",
    _SORT,
    "void vllm::moe::moe_align_block_size_small_batch_expert_kernel<int>(int const*, int*, int*, int*, int, int, unsigned long)",
    "fused_moe_kernel",
    "void vllm::act_and_mul_kernel<c10::BFloat16, &(c10::BFloat16 vllm::silu_kernel<c10::BFloat16>(c10::BFloat16 const&)), "
    "true>(c10::BFloat16*, c10::BFloat16 const*, int)",
    "fused_moe_kernel",
    _ELEMENTWISE.format("CUDAFunctor_add", 3),
    _ALLREDUCE,
    "memcpy32_post",
)
"""Kernels of one decoder layer."""
EAGER: Final = (
    _ELEMENTWISE.format("FillFunctor", 1),
    _SORT,
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<c10::BFloat16, at::native::ArgMaxOps<float>, unsigned int, "
    "long, 4> >(at::native::ReduceOp<c10::BFloat16, at::native::ArgMaxOps<float>, unsigned int, long, 4>)",
    _UNROLLED.format("direct_copy_kernel_cuda"),
    "void (anonymous namespace)::elementwise_kernel_with_index<int, at::native::arange_cuda_out(c10::Scalar const&)>(int)",
)
OPERATORS: Final = (
    "aten::to",
    "aten::_to_copy",
    "aten::copy_",
    "aten::empty_strided",
    "aten::index_select",
    "aten::argmax",
)
PHASES: Final = (("draft", 2), ("verify", 36), ("draft_extend", 1))
"""Phase and its layers: one graph replay each."""
PID: Final = 647
COMPUTE_STREAM, COMMUNICATION_STREAM = 7, 23


def _us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"


def header(rank: int, ranks: int) -> str:
    """What Kineto writes before the events."""
    return f"""
  {{
    "schemaVersion": 1,
    "deviceProperties": [
    {{
      "id": 0, "name": "NVIDIA H200", "totalGlobalMem": 150109880320,
      "computeMajor": 9, "computeMinor": 0,
      "numSms": 132
    }}
    ],
      "distributedInfo": {{"backend": "nccl", "rank": {rank}, "world_size": {ranks}, "pg_count": 1, "pg_config": [{{"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "pg_size": {ranks}, "ranks": {list(range(ranks))}}}], "nccl_version": "2.28.9"}},
      "cuda_driver_version": 13000,
      "cuda_runtime_version": 13000,
      "cupti_version": 130001,
  "displayTimeUnit": "ms",
  "baseTimeNanoseconds": {BASE_NS},
  "traceEvents": [
"""


FOOTER: Final = """  {
    "name": "process_name", "ph": "M", "ts": 5102342524729.943, "pid": 647, "tid": 0,
    "args": {
      "name": "python"
    }
  },
  {
    "name": "Record Window End", "ph": "i", "s": "g",
    "pid": "", "tid": "", "ts": 5102342524729.943
  }
  ],
  "traceName": "/tmp/generated.json"
}"""
"""The last rows and what Kineto writes behind them."""


class _Clock:
    """Where the host and the two streams are, and the next ids."""

    def __init__(self) -> None:
        self.host = self.compute = self.communication = FIRST_NS
        self.correlation = 100_000
        self.external = 5000


def _host_row(category: str, name: str, start: int, end: int, args: str) -> str:
    return (
        f'  {{\n    "ph": "X", "cat": "{category}", "name": "{name}", "pid": {PID}, "tid": {PID},\n'
        f'    "ts": {_us(start)}, "dur": {_us(end - start)},\n    "args": {{\n      {args}\n    }}\n  }},\n'
    )


def _launch(name: str, start: int, end: int, correlation: int) -> str:
    return (
        _host_row("cuda_runtime", name, start, end, f'"cbid": 311, "correlation": {correlation}')
        + f'  {{\n    "ph": "s", "id": {correlation}, "pid": {PID}, "tid": {PID}, "ts": {_us(start)},\n'
        f'    "cat": "ac2g", "name": "ac2g"\n  }},\n'
    )


def _kernel(name: str, start: int, end: int, correlation: int, stream: int, blocks: int) -> str:
    return (
        f'  {{\n    "ph": "X", "cat": "kernel", "name": "{name}", "pid": 0, "tid": {stream},\n'
        f'    "ts": {_us(start)}, "dur": {_us(end - start)},\n    "args": {{\n'
        f'            "queued": 0, "device": 0, "context": 1,      "stream": {stream}, "correlation": {correlation},      '
        f'"registers per thread": 52,      "shared memory": 5632,      "blocks per SM": {blocks / 132:.6f},      '
        f'"warps per SM": {blocks / 33:.6f},      "grid": [{blocks}, 1, 1],      "block": [128, 1, 1],      '
        f'"est. achieved occupancy %": 9\n    }}\n  }},\n'
        f'  {{\n    "ph": "f", "id": {correlation}, "pid": 0, "tid": {stream}, "ts": {_us(start)},\n'
        f'    "cat": "ac2g", "name": "ac2g", "bp": "e"\n  }},\n'
    )


def _device_work(names: tuple[str, ...], correlation: int, clock: _Clock, dice: random.Random) -> Iterator[str]:
    clock.compute = max(clock.compute, clock.host)
    for name in names:
        length = 700 + int(dice.expovariate(1 / 4000))
        blocks = dice.choice((1, 6, 66, 132, 192, 528))
        if name is _ALLREDUCE:
            start = max(clock.compute - length // 3, clock.communication)
            clock.communication = start + length
            clock.compute = max(clock.compute, start + length // 2)
            yield _kernel(name, start, start + length, correlation, COMMUNICATION_STREAM, blocks)
        else:
            start = clock.compute + dice.randrange(0, 900)
            clock.compute = start + length
            yield _kernel(name, start, start + length, correlation, COMPUTE_STREAM, blocks)


def _phase(name: str, layers: int, clock: _Clock, dice: random.Random) -> Iterator[str]:
    began = clock.host
    rows: list[str] = []
    for _ in range(6):
        length = dice.randrange(800, 9000)
        clock.external += 1
        operator = dice.choice(OPERATORS)
        args = f'"External id": {clock.external},"Record function id": 0, "Ev Idx": {clock.external}'
        rows.append(_host_row("cpu_op", operator, clock.host, clock.host + length, args))
        clock.host += length + 500
    for names, call in [(EAGER, "cudaLaunchKernel")] * 2 + [(LAYER * layers, "cudaGraphLaunch")]:
        clock.correlation += 7
        rows.append(_launch(call, clock.host, clock.host + 6000, clock.correlation))
        clock.host += 6500
        work = names if call == "cudaGraphLaunch" else (dice.choice(names),)
        rows += _device_work(work, clock.correlation, clock, dice)
    clock.host = max(clock.host, began) + dice.randrange(2000, 8000)
    args = f'"External id": {clock.external},"Record function id": 0, "Ev Idx": {clock.external}'
    yield _host_row("user_annotation", f"spec.{name}", began, clock.host, args)
    yield from rows
    yield (
        f'  {{\n    "ph": "X", "cat": "gpu_user_annotation", "name": "spec.{name}", "pid": 0, "tid": {COMPUTE_STREAM},\n'
        f'    "ts": {_us(began + 9000)}, "dur": {_us(max(1, clock.compute - began - 9000))},\n    "args": {{\n'
        f'      "External id": {clock.external}\n    }}\n  }},\n'
    )


def cycles(rank: int, seed: int) -> Iterator[str]:
    """Rows of one decode cycle after another, without end."""
    clock = _Clock()
    dice = random.Random(f"{seed} {rank}")
    while True:
        began = clock.host
        rows = [row for name, layers in PHASES for row in _phase(name, layers, clock, dice)]
        # The host waits for the device to know what was accepted, so that queues never grow.
        clock.host = max(clock.host, clock.compute, clock.communication) + 20_000
        args = f'"External id": {clock.external},"Record function id": 0, "Ev Idx": {clock.external}'
        yield _host_row("user_annotation", "spec.cycle", began, clock.host, args) + "".join(rows)
        clock.host += 30_000


def write_rank(path: Path, *, megabytes: float, rank: int = 0, ranks: int = 1, seed: int = 1) -> None:
    """Write one rank's trace of about ``megabytes`` (10**6 bytes) of text; gzip where the name ends in ``.gz``."""
    temporary = path.with_name(f".{path.name}.part")
    size = 0
    with gzip.open(temporary, "wt", compresslevel=6) if path.name.endswith(".gz") else temporary.open("w") as file:
        file.write(header(rank, ranks))
        for text in cycles(rank, seed):
            file.write(text)
            size += len(text)
            if size >= megabytes * 1e6:
                break
        file.write(FOOTER)
    temporary.rename(path)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--megabytes", type=float, default=100)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--gzip", action="store_true")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    for rank in range(given.ranks):
        path = given.folder / f"rank{rank}.json{'.gz' if given.gzip else ''}"
        if not path.exists():
            write_rank(path, megabytes=given.megabytes, rank=rank, ranks=given.ranks, seed=given.seed)


if __name__ == "__main__":
    main()
