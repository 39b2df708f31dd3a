"""Environments: one layout whoever wrote it, differences in order, stale baselines refused."""

from __future__ import annotations

import pytest
from story import NCCL_VARIABLES, environment

from specanalyze.answers.environment import (
    Difference,
    argument,
    canonical,
    differences,
    facts,
    tensor_parallel,
    unknown,
)
from specanalyze.answers.environment_check import check_baseline
from specanalyze.trace import RankSource, RankTrace, Trace
from specschema.errors import TraceError


def recording(name: str, section: dict[str, object]) -> Trace:
    def never() -> RankTrace:
        raise AssertionError("the environment alone must do")

    return Trace(name, (RankSource("0", name, never),), {"environment": section})


def test_collector_kineto_and_nested_layouts_are_the_same_facts() -> None:
    collector = {
        "gpu": "NVIDIA H200",
        "gpu_count": 2,
        "nccl": {"path": None, "version": "2.28.9", "torch_version": None},
        "server": "sglang",
        "server_version": "0.5.17",
        "server_args": {"tp_size": 2},
        "model": {"name": "m", "config_digest": "ab"},
    }
    nested = {
        "gpu": {"model": ["NVIDIA H200"], "count": 2},
        "nccl": "2.28.9",
        "server": {"name": "sglang", "version": "0.5.17", "args": {"tp_size": 2}},
        "model_digest": "ab",
        "model": {"name": "m"},
    }
    assert facts(collector) == facts(nested)
    assert facts(collector) == {
        "gpu.model": "NVIDIA H200",
        "gpu.count": "2",
        "nccl.version": "2.28.9",
        "server.name": "sglang",
        "server.version": "0.5.17",
        "server.args.tp_size": "2",
        "model_digest": "ab",
        "model.name": "m",
    }


def test_canonical_changes_nothing_the_second_time() -> None:
    once = canonical(environment())
    assert canonical(once) == once


def test_arguments_come_from_the_command_line_where_hooks_told_none() -> None:
    section = {
        "server": "sglang",
        "server_args": None,
        "command_line": ["--tp-size", "2", "--dtype=bfloat16", "--flag"],
    }
    assert argument(section, "tensor_parallel_size", "tp_size") == "2"
    assert argument(section, "dtype") == "bfloat16"
    assert argument(section, "flag") is True
    assert argument(section, "absent") is None
    assert argument({"server": "sglang", "command_line": []}, "tp_size") is None
    nested = {"server_args": {"speculative_config": {"num_speculative_tokens": 3}}}
    assert argument(nested, "steps", "speculative_config.num_speculative_tokens") == 3


def test_nccl_comes_first_and_unset_is_said() -> None:
    before = environment()
    after = environment(variables=NCCL_VARIABLES, driver="590.1", args={"log_level": "debug", "chunk": 8})
    found = differences(before, after)
    assert [str(d) for d in found] == [
        "NCCL_ALGO: unset -> Ring",
        "NCCL_P2P_LEVEL: unset -> SYS",
        "NCCL_PROTO: unset -> LL",
        "driver: 580.95.05 -> 590.1",
        "server.args.chunk: unset -> 8",
        "server.args.log_level: unset -> debug",
    ]
    assert [d.matters for d in found] == [True, True, True, True, False, False]


def test_a_loaded_nccl_library_is_a_difference() -> None:
    other = {"path": "/opt/libnccl.so.2", "version": "2.27.5", "torch_version": "2.28.9"}
    found = differences(environment(), environment(nccl=other))
    assert found[:2] == [
        Difference("nccl.path", "/usr/lib/libnccl.so.2", "/opt/libnccl.so.2", True),
        Difference("nccl.version", "2.28.9", "2.27.5", True),
    ]


def test_momentary_clocks_ports_and_nccls_debug_output_are_no_other_machine() -> None:
    gpus = [{"name": "NVIDIA H200", "clock_sm": 345, "clock_sm_max": 1980, "power_limit": 700_000}] * 8
    changed = environment(gpus=gpus, args={"port": 30001}, variables={"NCCL_DEBUG": "INFO"})
    assert [d for d in differences(environment(), changed) if d.matters] == []


def test_two_gpus_with_the_clocks_of_one_differ_in_their_count_alone() -> None:
    """A stale baseline used to be refused for ``clocks.power_limit_mw (700000, 700000 there, 700000 here)``."""
    gpu = {"name": "NVIDIA H200", "clock_sm": 1980, "clock_sm_max": 1980, "power_limit": 700_000}
    one, two = ({"gpu": "NVIDIA H200", "gpu_count": n, "gpus": [gpu] * n} for n in (1, 2))
    assert [d.name for d in differences(one, two)] == ["gpu.count"]
    uneven = two | {"gpus": [gpu, gpu | {"power_limit": 500_000}]}
    assert [str(d) for d in differences(two, uneven)] == ["clocks.power_limit_mw: 700000 -> 700000, 500000"]


def test_a_lower_power_limit_matters() -> None:
    gpus = [{"name": "NVIDIA H200", "clock_sm": 1980, "clock_sm_max": 1980, "power_limit": 500_000}] * 8
    assert [d.name for d in differences(environment(), environment(gpus=gpus)) if d.matters] == [
        "clocks.power_limit_mw"
    ]


def test_what_one_recording_lacks_is_unknown_and_no_difference() -> None:
    bare = {"gpu": ["NVIDIA H200"], "gpu_count": 8}
    assert differences(bare, environment()) == []
    assert unknown(bare, environment())[:3] == ["environment variables", "nccl.path", "nccl.version"]
    assert unknown(bare, bare) == ["environment variables", "server arguments"]
    assert unknown({}, {}) == ["everything"]
    assert unknown(environment(), environment()) == []


def test_a_baseline_on_other_nccl_settings_is_refused_and_named() -> None:
    stale = recording("old.parquet", environment(variables=NCCL_VARIABLES))
    today = recording("new.parquet", environment())
    with pytest.raises(
        TraceError, match=r"stale baseline: old\.parquet .*90\.1 tok/s.*NCCL_PROTO \(LL there, unset here\)"
    ):
        check_baseline(stale, today, what="90.1 tok/s")
    (line,) = check_baseline(stale, today, accept=True)
    assert "accepted" in line
    assert "NCCL_ALGO" in line


def test_speculation_itself_makes_no_baseline_stale() -> None:
    plain = recording("plain", environment(args={"speculative_num_steps": None}))
    assert check_baseline(plain, recording("eagle", environment())) == []


def test_a_baseline_that_cannot_be_checked_is_said() -> None:
    (line,) = check_baseline(recording("old", {}), recording("new", environment()))
    assert "cannot be checked" in line


def test_tensor_parallel_is_the_servers_else_the_number_of_ranks() -> None:
    assert tensor_parallel(recording("a", environment())) == 8
    assert tensor_parallel(recording("a", {})) == 1


def test_an_argument_without_a_value_differs_from_one_that_has_one() -> None:
    """``cuda_graph_backend_decode`` null in one and ``disabled`` in the other was no difference, and no baseline was stale for it."""
    before = environment(args={"speculative_config": None})
    before["server_args"] |= {"backend": None, "quantization": None, "empty": ""}
    after = environment(args={"speculative_config": {"method": "eagle3"}})
    after["server_args"] |= {"backend": "disabled", "quantization": "fp8"}
    assert [str(d) for d in differences(before, after)] == [
        "server.args.quantization: unset -> fp8",
        "server.args.backend: unset -> disabled",
        "server.args.speculative_config.method: unset -> eagle3",
    ]
    with pytest.raises(TraceError, match=r"quantization \(unset there, fp8 here\)"):
        check_baseline(recording("plain", before), recording("eagle", after))
    assert differences(before, before) == []
    assert differences(before, {"server": "sglang"}) == []  # arguments of one alone are unknown


@pytest.mark.parametrize("switch", ["disable_cuda_graph", "cuda_graph_backend_decode", "enforce_eager"])
def test_an_eager_baseline_is_none_of_a_server_with_graphs(switch: str) -> None:
    with pytest.raises(TraceError, match=switch):
        check_baseline(recording("plain", environment(args={switch: True})), recording("eagle", environment()))
