"""A pair of traces, one of CUDA graph capture and one of the graph's replay, as servers' profilers write them.

Modules and operators are those of a real torch.profiler recording of a small model on the CPU (with_stack, record_shapes). What a CPU has not,
the launch calls of the capture and the activities of the replay, is written around them in Kineto's layout.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

LAUNCHING: Final = ("aten::addmm", "aten::mm", "aten::_softmax", "aten::native_layer_norm", "aten::add")
"""Operators of the model that launch one kernel each."""
PID: Final = 40


def record(path: Path) -> list[dict[str, Any]]:
    """torch.profiler's own rows of two decoder layers and a norm."""
    import torch

    class ToyAttention(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out = torch.nn.Linear(8, 24), torch.nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = self.qkv(x).chunk(3, -1)
            out: torch.Tensor = self.out(torch.softmax(q @ k.T, -1) @ v)
            return out

    class ToyDecoderLayer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention, self.norm, self.mlp = ToyAttention(), torch.nn.LayerNorm(8), torch.nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.add(x, self.mlp(self.norm(torch.add(x, self.attention(x)))))

    class Toy(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList([ToyDecoderLayer() for _ in range(2)])
            self.norm = torch.nn.LayerNorm(8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x)
            out: torch.Tensor = self.norm(x)
            return out

    model, x = Toy(), torch.randn(4, 8)
    with torch.no_grad(), torch.profiler.profile(with_stack=True, record_shapes=True) as profiler:
        model(x)
    profiler.export_chrome_trace(str(path))
    rows = json.loads(path.read_text())["traceEvents"]
    return [row for row in rows if row.get("ph") == "X" and row.get("cat") in ("cpu_op", "python_function")]


def captured(rows: Sequence[dict[str, Any]], *, names: bool) -> list[dict[str, Any]]:
    """The rows with a capture around them, and a launch call in each operator that launches; ``names``: as ROCm names kernels there."""
    ops = sorted((row for row in rows if row["name"] in LAUNCHING), key=lambda row: float(row["ts"]))
    first, last = ops[0], ops[-1]
    # the profiler's microseconds are so large that a double holds them to a nanosecond and no better
    begin, end = float(first["ts"]) - 0.2, float(last["ts"]) + float(last["dur"]) + 0.1
    out = [
        *rows,
        call("StreamBeginCapture", first, begin, 1),
        call("StreamEndCapture", first, end, 2),
        call("LaunchKernel", first, begin - 50, 3),  # a warm-up before the capture
    ]
    for number, op in enumerate(ops):
        launch = call("LaunchKernel", op, float(op["ts"]) + float(op["dur"]) / 2, 10 + number)
        if names:
            launch["args"]["kernel"] = kernel_of(op["name"])
        out.append(launch)
    return out


def kernel_of(op: str) -> str:
    """Kernel that an operator launches."""
    return {
        "aten::addmm": "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S",
        "aten::mm": "Cijk_Ailk_Bljk_BBS_BH_S",
        "aten::_softmax": "softmax_warp_forward",
        "aten::native_layer_norm": "vectorized_layer_norm_kernel",
        "aten::add": "vectorized_elementwise_kernel",
    }[op]


def call(name: str, beside: dict[str, Any], ts: float, correlation: int) -> dict[str, Any]:
    """A call of the runtime on the thread of another row."""
    return {
        "ph": "X",
        "cat": "cuda_runtime",
        "name": f"cuda{name}",
        "pid": beside["pid"],
        "tid": beside["tid"],
        "ts": round(ts, 3),
        "dur": 0.001,
        "args": {"correlation": correlation},
    }


def replayed(kernels: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    """A verify phase that launches one graph for each list of kernels, which run one after another."""
    rows: list[dict[str, Any]] = [
        {"ph": "X", "cat": "user_annotation", "name": "spec.verify", "pid": PID, "tid": PID, "ts": 1000, "dur": 500}
    ]
    ts = 1100.0
    for graph, names in enumerate(kernels):
        launch = call("GraphLaunch", {"pid": PID, "tid": PID}, 1010.0 + graph, 100 + graph)
        rows.append(launch)
        for name in names:
            where = {"device": 0, "stream": 7, "correlation": 100 + graph, "graph id": 5, "graph node id": 21474836480}
            kernel = {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": 1, "args": where}
            rows.append(kernel)
            ts += 2
    return rows


def write(path: Path, rows: Sequence[dict[str, Any]], rank: int = 0) -> Path:
    """A trace of one rank."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"distributedInfo": {"rank": rank, "world_size": 2}, "traceEvents": list(rows)}))
    return path
