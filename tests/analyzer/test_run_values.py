"""Values made anew for each run are told from settings, and no setting is taken for one."""

from __future__ import annotations

from pathlib import Path

import pytest

from specanalyze.answers.compare import compare
from specanalyze.answers.environment import differences, environment_of, run_differences
from specanalyze.answers.run_values import of_the_run
from specanalyze.cli import run
from specanalyze.formats.load import open_trace

SAMPLES = Path(__file__).parents[2] / "samples"
ONE, OTHER = "2fdd1e6748054e2ea4a789e95de55581", "577a40934b6f40f0817790b23c059748"
UUIDS = ("0f8fad5b-d9cb-469f-a165-70867728950e", "7c9e6679-7425-40de-944b-e07fc1f90ae7")


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        (
            "VLLM_OBJECT_STORAGE_SHM_BUFFER_NAME",
            f"VLLM_OBJECT_STORAGE_SHM_BUFFER_{ONE}",
            f"VLLM_OBJECT_STORAGE_SHM_BUFFER_{OTHER}",
        ),
        ("server.args.kv_transfer_config.engine_id", *UUIDS),
        ("server.args.additional_config.lease", f"lease {UUIDS[0]}", f"lease {UUIDS[1]}"),
        ("SGLANG_RUN_ID", "sglang-run-1795972486.5367029-85998540", "sglang-run-1795972999.1-2"),
        ("server.args.port", "30010", "30011"),
        ("server.args.nccl_port", "31010", "unset"),
        ("VLLM_PORT", "29500", "29501"),
        ("VLLM_NIXL_SIDE_CHANNEL_PORT", "5600", "5601"),
        ("VLLM_HOST_IP", "10.0.0.4", "10.0.0.9"),
        ("NCCL_COMM_ID", "10.0.0.4:41233", "10.0.0.4:53211"),
        ("server.args.dist_init_addr", "127.0.0.1:32010", "127.0.0.1:32011"),
        ("server.args.data_parallel_address", "tcp://node0:32010", "tcp://node0:32555"),
        ("server.args.metrics", "127.0.0.1:9090", "127.0.0.1:9191"),
        ("server.args.scheduler_input_ipc_name", "ipc:///tmp/a81", "ipc:///tmp/b92"),
        ("server.args.socket", "/tmp/server_4711.sock", "/tmp/server_4999.sock"),
        ("VLLM_RPC_BASE_PATH", "/tmp/tmpab12cd_4/rpc", "/tmp/tmpzz98yx_1/rpc"),
        ("server.args.file_storage_path", "/tmp/tmp.AbCdEf1234", "/tmp/tmp.QwErTy0987"),
        ("server.args.shm", "psm_0a1b2c3d", "psm_99aabbcc"),
        ("server.args.random_seed", "11", "12"),
        ("clocks.sm_mhz", "345", "1980"),
    ],
)
def test_what_is_made_anew(name: str, before: str, after: str) -> None:
    assert of_the_run(name, before, after)


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("NCCL_PROTO", "LL", "unset"),
        ("NCCL_SOCKET_IFNAME", "eth0", "eth1"),
        ("NCCL_IB_HCA", "mlx5_0:1", "mlx5_1:1"),
        ("CUDA_VISIBLE_DEVICES", f"GPU-{UUIDS[0]}", f"GPU-{UUIDS[1]}"),
        ("CUDA_VISIBLE_DEVICES", f"MIG-{UUIDS[0]}", f"MIG-{UUIDS[1]}"),
        ("model_digest", ONE, OTHER),
        ("server.args.model_path", f"s3://runs/{UUIDS[0]}/model", f"s3://runs/{UUIDS[1]}/model"),
        ("server.args.model_path", "/tmp/tmpab12cd_4/model", "/tmp/tmpzz98yx_1/model"),
        ("server.args.speculative_draft_model_path", f"/m/session_{ONE}", f"/m/session_{OTHER}"),
        ("server.args.revision", ONE, OTHER),
        ("VLLM_CACHE_ROOT", f"/cache/{ONE}", f"/cache/{OTHER}"),
        ("server.args.shm_size_gb", "10.25", "10.50"),
        ("server.args.shm", "psm_small", "psm_large"),
        ("server.args.pipeline", "a_10", "a_20"),
        ("server.args.supports", "1", "2"),
        ("SGLANG_SKIP", "1", "0"),
        ("server.args.log_level", "info", "debug"),
        ("server.args.data_parallel_address", "tcp://node0:32010", "tcp://node1:32010"),
        ("VLLM_OBJECT_STORAGE_SHM_BUFFER_NAME", f"VLLM_SHM_{ONE}", f"OTHER_SHM_{ONE}"),
        ("VLLM_OBJECT_STORAGE_SHM_BUFFER_NAME", f"VLLM_SHM_{ONE}", "unset"),
        ("server.args.dir", "/tmp/tmpl", "/tmp/tmpm"),
    ],
)
def test_what_is_a_setting(name: str, before: str, after: str) -> None:
    assert not of_the_run(name, before, after)


def test_a_real_recording_says_how_many_were_left_out_and_lists_them_when_asked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """vLLM names its shared memory anew in each run; ``compare`` used to list it among the settings."""
    paths = [SAMPLES / f"vllm_tp1_{name}.parquet" for name in ("plain", "eagle3_steps2")]
    a, b = (environment_of(open_trace([path])) for path in paths)
    name = "VLLM_OBJECT_STORAGE_SHM_BUFFER_NAME"
    assert name not in [d.name for d in differences(a, b)]
    assert name in [d.name for d in run_differences(a, b)]
    assert run(["compare", *map(str, paths)]) == 0
    said = capsys.readouterr().out
    assert name not in said
    assert "not listed: 1 fact made anew for each run" in said
    assert run(["compare", *map(str, paths), "--all"]) == 0
    assert name in capsys.readouterr().out


def test_nothing_is_both_a_difference_and_of_the_run() -> None:
    paths = [SAMPLES / f"sglang_tp2_eagle3_steps{n}.parquet" for n in (2, 5)]
    result = compare(*(open_trace([path]) for path in paths))
    names = [d.name for d in result.of_the_run]
    assert "server.args.port" in names or "SGLANG_RUN_ID" in names
    assert not set(names) & {d.name for d in result.differences}
    assert not any(d.matters for d in result.of_the_run)
