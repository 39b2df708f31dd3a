"""The real vLLM engine on a CPU: where it is, and how to start it with or without the collector.

``scripts/vllm_cpu_environment.sh FOLDER`` makes an environment that has it; SPECANALYZE_VLLM_PYTHON names that
environment's interpreter where the tests run with another one.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

NEEDS_VLLM: Final = (
    "no vLLM for CPUs: run scripts/vllm_cpu_environment.sh FOLDER and set SPECANALYZE_VLLM_PYTHON=FOLDER/bin/python"
)
READY_SECONDS: Final = 600
STOP_SECONDS: Final = 60
SUPPORT: Final = Path(__file__).parent
TWO_RANKS: Final = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}  # the default asks for a NUMA node a rank


def interpreter() -> str | None:
    """The interpreter that has vLLM; None where there is none."""
    named = os.environ.get("SPECANALYZE_VLLM_PYTHON")
    if named:
        return named
    return sys.executable if importlib.util.find_spec("vllm") is not None else None


def environment(cache: Path, **more: str) -> dict[str, str]:
    """Environment of an engine: offline, small, eager, and without the collector unless ``more`` switches it on."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("SPECANALYZE", "PYTHON"))}
    return inherited | {
        "HF_HUB_OFFLINE": "1",
        "VLLM_CACHE_ROOT": str(cache),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "TORCHDYNAMO_DISABLE": "1",  # tensor parallelism compiles one function even in eager mode
        **more,
    }


def generate(python: str, job: dict[str, Any], environment: dict[str, str]) -> dict[str, Any]:
    """Runs vllm_offline.py and returns its result.

    Raises:
        RuntimeError: the engine failed; with the end of its log.
    """
    command = [python, "-W", "ignore", str(SUPPORT / "vllm_offline.py"), json.dumps(job)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=READY_SECONDS, check=False)
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            result: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
            return result | {"log": done.stdout + done.stderr}
    raise RuntimeError(f"the engine failed:\n{(done.stdout + done.stderr)[-4000:]}")


@dataclass
class Engine:
    """What an offline run needs."""

    python: str
    models: Path
    folder: Path

    @property
    def triton(self) -> Path:
        """Where the environment has Triton, apart from its packages: the V1 runner is tested without."""
        return Path(self.python).parents[1] / "triton"

    @property
    def interpreted(self) -> dict[str, str]:
        """Variables with which the V2 runner runs, its kernels by Triton's interpreter."""
        places = (self.triton, SUPPORT / "interpreted_triton")
        return {
            "VLLM_USE_V2_MODEL_RUNNER": "1",
            "TRITON_INTERPRET": "1",
            "PYTHONPATH": os.pathsep.join(map(str, places)),
        }

    def generate(
        self, tokens: list[int], prompts: list[list[int]], *, processes: bool = False, v2: bool = False, **job: Any
    ) -> Any:
        """One offline generation; in one process unless ``processes``, by the V1 runner unless ``v2``."""
        collected = self.folder / f"collected{len(list(self.folder.glob('collected*')))}"
        more = {"SPECANALYZE_DIR": str(collected)} if job.get("trace") else {}
        more |= TWO_RANKS if processes else {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": "1"}
        if v2:
            more |= self.interpreted
        collected.mkdir()
        job |= {"models": str(self.models), "prompts": prompts, "tokens": tokens}
        job |= {"trace": str(job["trace"])} if job.get("trace") else {}
        return generate(self.python, job, environment(self.folder / "cache", **more))


@dataclass
class Server:
    """vLLM's OpenAI server."""

    url: str
    log: Path

    def get(self, path: str, body: dict[str, Any] | None = None) -> str:
        """The text of an answer."""
        request = urllib.request.Request(
            self.url + path,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            return str(answer.read().decode())

    def complete(self, prompt: list[int], tokens: int) -> dict[str, Any]:
        """One greedy answer that is not streamed, with the server's own count of each step's accepted drafts."""
        body = {"model": "tiny", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        answer: dict[str, Any] = json.loads(self.get("/v1/completions", body | {"return_token_ids": True}))
        return answer

    def counters(self) -> dict[str, float]:
        """Counters of speculative decoding, since the server's start."""
        lines = (line for line in self.get("/metrics").splitlines() if line.startswith("vllm:spec_decode_num_"))
        pairs = (line.rsplit(" ", 1) for line in lines if "position=" not in line and "_created" not in line)
        return {name.split("{")[0].removeprefix("vllm:spec_decode_num_"): float(value) for name, value in pairs}


@contextlib.contextmanager
def serve(python: str, models: Path, log: Path, environment: dict[str, str], *arguments: str) -> Iterator[Server]:
    """vLLM's OpenAI server with EAGLE-3 and three drafts, ready to answer; with further ``arguments``."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    speculation = {"method": "eagle3", "num_speculative_tokens": 3, "model": str(models / "eagle3")}
    # `vllm serve` asks for the metadata of a package called vllm, which the build for CPUs is not
    command = [python, "-W", "ignore", "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", str(models / "target"), "--served-model-name", "tiny", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--enforce-eager", "--max-model-len", "2048"]
    command += ["--per-request-spec-decode-metrics", "detailed", "--speculative-config", json.dumps(speculation)]
    command += arguments
    with log.open("w") as file:
        process = subprocess.Popen(
            command, env=environment, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
    server = Server(f"http://127.0.0.1:{port}", log)
    try:
        _wait_until_ready(server, process)
        yield server
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # its own session: this group holds only what it started
            process.wait()


def _wait_until_ready(server: Server, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        with contextlib.suppress(OSError):
            server.get("/health")
            return
        time.sleep(0.5)
    raise RuntimeError(f"the server did not come up:\n{server.log.read_text()[-4000:]}")


@dataclass
class Recorded:
    """A server that loads the collector, and the folder they share."""

    server: Server
    collected: Path


def speccollect(*arguments: str, folder: Path) -> str:
    """What a command of the collector prints; it works in ``folder``."""
    command = [sys.executable, "-m", "speccollect", *arguments, "--dir", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
