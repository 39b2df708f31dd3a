"""Kernel classes: every rule has its row in kernel_names.csv, and every recorded name is looked at."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from specschema.kernel_classes import BY_OPERATION, RULES, UNCLASSIFIED, classify, classify_names
from specschema.kernel_classes_page import page
from specschema.kernel_function import function_of
from specschema.phases import COMMUNICATION_BUCKETS, COMPUTE_BUCKETS, DEVICE_BUCKETS, MEMORY_BUCKETS

_ROOT = Path(__file__).resolve().parents[2]
_NAMES = list(csv.DictReader(io.StringIO(Path(__file__).with_name("kernel_names.csv").read_text(encoding="utf-8"))))

# What a name would have to contain to be communication. It finds more than the rules do, on purpose: what it finds and
# the table does not call communication is listed below, looked at one by one.
_SMELLS_OF_RANKS = re.compile(
    r"nccl|all_?reduce|reduce_?scatter|all_?gather|all_?to_?all|a2a|broadcast|send_?recv|cross_device|multimem|nvls|"
    r"symm|nvshmem|mscclpp|one_?shot|two_?shot|lamport|dispatch|combine|deep_?ep|push|pull|peer|rank",
    re.IGNORECASE,
)
_LOOKED_AT = {
    "cub::DeviceReduceByKeyKernel": "a dispatch policy of CUB among its template arguments",
    "_combined_routing_compute": "triton_kernels: routing of one rank's tokens",
    "_combined_routing_memset": "triton_kernels: routing of one rank's tokens",
}

# Classes of the harvested name list that stand for one of our buckets; all others are other_compute.
_HARVEST_BUCKETS = {
    "attention": {"attention"},
    "moe": {"moe"},
    "gemm": {"gemm"},
    "comm": set(COMMUNICATION_BUCKETS),
    "memops": {"memcpy", "other_compute"},
}


@pytest.mark.parametrize("row", _NAMES, ids=lambda row: row["name"][:60])
def test_name(row: dict[str, str]) -> None:
    found = classify(row["name"])
    assert (found.bucket, found.subclass) == (row["bucket"], row["subclass"])
    assert (found.rule is None) == (row["subclass"] == UNCLASSIFIED)


def test_every_rule_has_a_name() -> None:
    used = {classify(row["name"]).rule for row in _NAMES}
    assert [rule.pattern for index, rule in enumerate(RULES) if index not in used] == []


def test_rules_are_well_formed() -> None:
    for rule in RULES:
        assert rule.bucket in DEVICE_BUCKETS
        assert rule.subclass
        assert rule.subclass != UNCLASSIFIED
        assert rule.origin, rule.pattern
        assert re.compile(rule.pattern).search("") is None, "matches everything"
        assert re.compile(rule.pattern).search("zq_no_such_kernel") is None, "a catch-all"


def test_names_are_listed_once() -> None:
    assert [name for name, count in Counter(row["name"] for row in _NAMES).items() if count > 1] == []


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("void at::native::elementwise_kernel<4, silu_kernel(int)>(int)", "at::native::elementwise_kernel"),
        ("void (anonymous namespace)::all_reduce_kernel<(anonymous namespace)::Impl<2u>, 1>(int)", "all_reduce_kernel"),
        ("void at::native::<unnamed>::CatArrayBatchedCopy<int>(T1 *)", "at::native::CatArrayBatchedCopy"),
        ("std::enable_if<(((8)>(0)))&&t<int>::exists, void>::type vllm::norm_kernel<8>(int*)", "vllm::norm_kernel"),
        ("_ZN6sglang26cross_device_reduce_1stageI13__nv_bfloat16Li8EEEvi", "sglang::cross_device_reduce_1stage"),
        ("_ZN43_GLOBAL__N__b6de9c8c_10_SoftMax_cu_9f978f6320softmax_warp_forwardIffE", "softmax_warp_forward"),
        ("_Z5saxpyPdS_S_di", "saxpy"),
        ("_fwd_kernel", "_fwd_kernel"),
        ("attn<128>", "attn"),
        ("", ""),
        ("<<<", "<<<"),
    ],
)
def test_function_of(name: str, function: str) -> None:
    assert function_of(name) == function


@pytest.mark.parametrize(
    ("name", "bucket"),
    [
        ("void flashinfer::norm::RMSNormKernel<8u, __nv_bfloat16>(__nv_bfloat16*)", "other_compute"),
        ("_fwd_kernel", "attention"),
        ("_fwd_kernel_ep_scatter_2", "moe"),
        ("triton_poi_fused_constant_pad_nd_moe_forward_0", "other_compute"),
        ("triton_poi_fused_all_gather_into_tensor_wait_tensor_0", "other_compute"),
        ("void at::native::vectorized_elementwise_kernel<4, flash::allreduce_functor>(int)", "other_compute"),
        ("memcpy32_post", "other_compute"),
        ("void cub::DeviceReduceKernel<int>(int*)", "other_compute"),
        ("ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)", "other_comm"),
        ("ar_fusion::moe::moefinalize_allreduce_fusion_kernel_oneshot_lamport", "allreduce"),
        ("NCCLDEVKERNEL_ALLREDUCE_SUM_BF16_RING_LL", "allreduce"),
    ],
)
def test_traps(name: str, bucket: str) -> None:
    assert classify(name).bucket == bucket


@pytest.mark.parametrize(
    ("op", "bucket", "subclass"),
    [
        ("allreduce", "allreduce", "allreduce"),
        ("allreduce_coalesced", "allreduce", "allreduce"),
        ("_allgather_base", "other_comm", "allgather"),
        ("reduce_scatter_tensor_coalesced", "other_comm", "reducescatter"),
        ("all_to_allv", "other_comm", "alltoall"),
        ("send", "other_comm", "send"),
    ],
)
def test_recorded_operation_wins_over_the_name(op: str, bucket: str, subclass: str) -> None:
    assert classify("ncclDevKernel_SendRecv(x)", op) == (bucket, subclass, BY_OPERATION)


def test_no_operation_leaves_it_to_the_name() -> None:
    names = ["fused_moe_kernel", "ncclDevKernel_Generic_4(x)", "ncclDevKernel_Generic_4(x)"]
    assert [c.bucket for c in classify_names(names)] == ["moe", "other_comm", "other_comm"]
    assert [c.bucket for c in classify_names(names, [None, "allreduce", ""])] == ["moe", "allreduce", "other_comm"]


def test_operations_must_match_names() -> None:
    with pytest.raises(ValueError, match="shorter"):
        classify_names(["a", "b"], [None])


def test_page_is_current() -> None:
    written = (_ROOT / "docs" / "kernel-classes.md").read_text(encoding="utf-8")
    assert written == page(), "run: python -m specschema.kernel_classes_page docs/kernel-classes.md"


def test_page_command(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    subprocess.run([sys.executable, "-m", "specschema.kernel_classes_page", path], check=True)
    assert path.read_text(encoding="utf-8") == page()


def test_harvested_names(reference: Path) -> None:
    harvest = json.loads((reference / "facts" / "kernel_names.json").read_text())
    wrong = [
        (entry["name"], entry["class"], found)
        for entry in harvest["selftest"]
        if (found := classify(entry["name"])).rule is None
        or found.bucket not in _HARVEST_BUCKETS.get(entry["class"], {"other_compute"})
    ]
    assert len(harvest["selftest"]) >= 92
    assert wrong == []


def test_case_of_communication_names(reference: Path) -> None:
    case = json.loads((reference / "cases" / "06-comm-kernel-names" / "expected.json").read_text())
    for entry in case["classification"]:
        found = classify(entry["name"], entry["collective_arg"])
        assert (entry["name"], found.bucket) == (entry["name"], entry["bucket"])
        assert found.rule is not None


def _kineto_kernels(path: Path) -> Counter[tuple[str, str | None]]:
    """Device time in nanoseconds by kernel name and recorded operation."""
    with gzip.open(path, "rb") as file:
        document = json.loads(file.read().decode("utf-8", "replace"), strict=False)
    spent: Counter[tuple[str, str | None]] = Counter()
    for event in document["traceEvents"]:
        if event.get("cat") == "kernel":
            operation = event.get("args", {}).get("Collective name")
            spent[event["name"], operation] += round(1000 * float(event.get("dur", 0)))
    return spent


def _nsys_kernels(path: Path) -> Counter[tuple[str, str | None]]:
    """The same of an Nsight Systems SQLite export."""
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
        rows = database.execute(
            "SELECT s.value, SUM(k.end - k.start) FROM CUPTI_ACTIVITY_KIND_KERNEL k "
            "JOIN StringIds s ON s.id = k.demangledName GROUP BY 1"
        ).fetchall()
    database.close()
    return Counter({(name, None): spent for name, spent in rows})


@pytest.fixture(scope="module")
def recorded(reference: Path) -> dict[str, Counter[tuple[str, str | None]]]:
    """Every trace with kernels -> device time by name."""
    found: dict[str, Counter[tuple[str, str | None]]] = {}
    for path in sorted((reference / "traces").rglob("*")):
        if path.suffixes[-2:] == [".json", ".gz"]:
            found[str(path.relative_to(reference))] = _kineto_kernels(path)
        elif path.suffix == ".sqlite":
            found[str(path.relative_to(reference))] = _nsys_kernels(path)
    return {trace: spent for trace, spent in found.items() if spent}


def test_unclassified_stays_below_one_percent(recorded: dict[str, Counter[tuple[str, str | None]]]) -> None:
    """Run with ``-s`` to read the shares and the ten largest other_compute names of each trace."""
    assert len(recorded) >= 28
    for trace, spent in recorded.items():
        total = sum(spent.values())
        unknown = {name: ns for (name, op), ns in spent.items() if classify(name, op).rule is None}
        other = Counter({name: ns for (name, op), ns in spent.items() if classify(name, op).bucket == "other_compute"})
        lines = [f"{trace}: unclassified {sum(unknown.values()) / total:.3%}"]
        lines += [
            f"  {ns / total:6.2%} {classify(name).subclass:14} {name[:110]}" for name, ns in other.most_common(10)
        ]
        sys.stdout.write("\n".join(lines) + "\n")
        assert sum(unknown.values()) < 0.01 * total, f"{trace}: {unknown}"


def test_every_recorded_communication_kernel_is_listed(recorded: dict[str, Counter[tuple[str, str | None]]]) -> None:
    names = {name for spent in recorded.values() for name, _ in spent}
    listed = {row["name"] for row in _NAMES if row["bucket"] in COMMUNICATION_BUCKETS}
    assert {name for name in names if classify(name).bucket in COMMUNICATION_BUCKETS} <= listed


def test_no_recorded_kernel_between_ranks_is_missed(recorded: dict[str, Counter[tuple[str, str | None]]]) -> None:
    missed = {
        function_of(name)
        for spent in recorded.values()
        for name, _ in spent
        if _SMELLS_OF_RANKS.search(name) and classify(name).bucket not in COMMUNICATION_BUCKETS
    }
    assert missed == set(_LOOKED_AT)


def test_recorded_operation_and_name_agree(recorded: dict[str, Counter[tuple[str, str | None]]]) -> None:
    """Every kernel that the framework says is a collective is communication by its name too."""
    by_name = [classify(name) for spent in recorded.values() for name, op in spent if op]
    assert by_name
    assert {found.bucket for found in by_name} <= set(COMMUNICATION_BUCKETS)


def test_buckets_are_those_of_kernels() -> None:
    assert {rule.bucket for rule in RULES} <= {*COMPUTE_BUCKETS, *COMMUNICATION_BUCKETS, *MEMORY_BUCKETS}
