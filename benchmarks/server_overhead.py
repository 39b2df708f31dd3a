"""What the collector costs a running server: requests with the plugin idle and recording phases, in alternation.

    python benchmarks/server_overhead.py --url http://127.0.0.1:30000 --dir FOLDER [--rounds 20] [--max-tokens 400]
    python benchmarks/server_overhead.py --start-command "python -m sglang.launch_server ..." --url ... [--starts 3]

The server (SGLang or vLLM, OpenAI's endpoints or /generate) runs with the collector loaded (SPECANALYZE_DIR=FOLDER). In each round
one request is streamed in every state, in an order of the round's own: idle, idle again (the control: what this server can't tell
apart), phases (armed through the control word before the request), and with ``--windows`` the default windows, too. After each change of state
a short request, which is not counted, lets the ranks see the word and close their files; where a rank still prepares its recording when the measured
request begins, that is said. Printed for each state: decode tokens a second, time per token,
the median gap between two chunks (about a step) and CPU time of the rank processes a token where they run on this machine, each with its ratio to idle of the same round: median over rounds and 95 %
bootstrap interval.

With ``--start-command`` servers are started here, in turns with the plugin (SPECANALYZE_DIR) and without (SPECANALYZE=0): seconds from start to
the first answer. The last one started, with the plugin, then serves the requests.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from speccollect.config import FOLDER_VARIABLE, PHASES_ONLY, SWITCH_VARIABLE, WindowSettings
from speccollect.control import word
from speccollect.control.status import alive, read_statuses
from speccollect.control.wait import wait_for_ranks
from speccollect.request.latency import Streamed
from speccollect.request.prompts import LONG_PROMPT, input_ids
from speccollect.request.stream import Endpoint, find_endpoint, request_body, stream_request

SETTLE_TOKENS = 8
STOP_SECONDS = 60
FIGURES = ("tokens_per_second", "token_ms", "chunk_ms", "cpu_ms")


def cpu_ns(pids: list[int]) -> int | None:
    """CPU time of all threads of some processes so far; None where it can't be read (another machine or container)."""
    total = 0
    for pid in pids:
        for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError):  # a thread may end meanwhile
                total += int(path.read_text().split()[0])
    return total or None


def measured(streamed: Streamed) -> dict[str, float]:
    """Figures of one request, after its first chunk.

    Raises:
        SystemExit: the request failed, or the server counts no tokens.
    """
    if streamed.error is not None:
        raise SystemExit(f"a request failed: {streamed.error}")
    if not streamed.completion_tokens or len(streamed.chunks) < 3:
        raise SystemExit("the server streams no tokens, or does not count them")
    arrivals = np.array([at for at, _ in streamed.chunks])
    # the first chunk's tokens came with it: where the server doesn't count them, one
    decoded = streamed.completion_tokens - (streamed.chunks[0][1] or 1)
    seconds = (arrivals[-1] - arrivals[0]) / 1e9
    return {
        "tokens_per_second": decoded / seconds,
        "token_ms": seconds / decoded * 1e3,
        "chunk_ms": float(np.median(np.diff(arrivals))) / 1e6,
    }


class Alternation:
    """Requests to one server, in states of its collector."""

    def __init__(self, endpoint: Endpoint, folder: Path, prompt: Any, max_tokens: int) -> None:
        self.endpoint = endpoint
        self.folder = folder
        self.body = request_body(endpoint, prompt, max_tokens, ignore_eos=True, temperature=0)
        self.short = request_body(endpoint, prompt, SETTLE_TOKENS, ignore_eos=True, temperature=0)
        self.unprepared: dict[str, int] = {}
        self.states = {"idle": None, "idle again": None, "phases": PHASES_ONLY, "windows": WindowSettings()}

    def request(self) -> dict[str, float]:
        """Figures of one long request; ``cpu_ms`` is CPU time of the rank's processes a token, which a busy machine disturbs least."""
        pids = [status.pid for status in read_statuses(self.folder) if alive(status)]
        before = cpu_ns(pids)
        streamed = stream_request(self.endpoint, self.body)
        after = cpu_ns(pids)
        figures = measured(streamed)
        if before is not None and after is not None and streamed.completion_tokens:
            figures["cpu_ms"] = (after - before) / streamed.completion_tokens / 1e6
        return figures

    def settle(self) -> None:
        """A step or two, in which every rank reads the word."""
        failed = stream_request(self.endpoint, self.short).error
        if failed is not None:
            raise SystemExit(f"a request failed: {failed}")

    def turn(self, state: str) -> dict[str, float]:
        """One request in a state; the server is idle again afterwards, its files closed and removed.

        A change of state costs a rank a few milliseconds in the step that sees the word, and with windows its writer thread
        prepares: ``unprepared`` counts the measured requests that began meanwhile.
        """
        settings = self.states[state]
        if settings is None:
            self.settle()
            return self.request()
        command = word.arm(self.folder, settings)
        try:
            self.settle()
            if any(status.preparing for status in read_statuses(self.folder)):
                self.unprepared[state] = self.unprepared.get(state, 0) + 1
            figures = self.request()
        finally:
            word.disarm(self.folder)
            self.settle()
            late = wait_for_ranks(self.folder, command.recording, nudge=self.settle)
        took_part = [s for s in read_statuses(self.folder) if s.recording == command.recording]
        if late or not took_part or any(s.state != "done" for s in took_part):
            said = late or [f"rank {s.rank}: {s.message}" for s in took_part] or ["no rank saw the command"]
            raise SystemExit(f"{state} were not recorded: {'; '.join(said)}")
        shutil.rmtree(word.recording_folder(self.folder, command.recording), ignore_errors=True)
        return figures


def alternate(alternation: Alternation, states: list[str], rounds: int) -> dict[str, list[dict[str, float]]]:
    """State -> figures of each round; a first round is not counted."""
    found: dict[str, list[dict[str, float]]] = {state: [] for state in states}
    shuffled = random.Random(0)
    for number in range(rounds + 1):
        for state in shuffled.sample(states, k=len(states)):
            figures = alternation.turn(state)
            if number:
                found[state].append(figures)
    return found


def ratio(values: Any, base: Any) -> dict[str, float]:
    """Median over rounds of value / base within the round, with a 95 % bootstrap interval."""
    ratios = np.array(values) / np.array(base)
    picks = np.random.default_rng(0).integers(0, len(ratios), (4000, len(ratios)))
    low, high = np.percentile(np.median(ratios[picks], axis=1), (2.5, 97.5))
    return {"ratio": float(np.median(ratios)), "low": float(low), "high": float(high)}


def report(found: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Print the table, and return its figures."""
    rows: dict[str, Any] = {}
    print(f"{'state':11s} {'figure':18s} {'median':>9s} {'ratio to idle':>14s} {'95 % interval':>18s}")
    for state, rounds in found.items():
        for name in (name for name in FIGURES if all(name in figures for figures in rounds)):
            values = [figures[name] for figures in rounds]
            row = {"median": statistics.median(values), **ratio(values, [f[name] for f in found["idle"]])}
            rows[f"{state}, {name}"] = row
            print(
                f"{state:11s} {name:18s} {row['median']:9.3f} {row['ratio']:14.4f} {row['low']:9.4f}..{row['high']:.4f}"
            )
    return rows


def ready(url: str, process: subprocess.Popen[bytes], seconds: float) -> float:
    """Seconds until the server answers a request for its models or its health.

    Raises:
        SystemExit: it ended, or took too long.
    """
    begun = time.monotonic()
    while time.monotonic() - begun < seconds:
        if process.poll() is not None:
            raise SystemExit(f"the server ended with {process.returncode} before it answered")
        for path in ("/v1/models", "/health"):
            with contextlib.suppress(OSError), urllib.request.urlopen(url + path, timeout=5):
                return time.monotonic() - begun
        time.sleep(0.1)
    raise SystemExit(f"the server did not answer within {seconds:.0f} s")


@contextlib.contextmanager
def started(command: str, url: str, folder: Path | None, log: Path, seconds: float) -> Iterator[float]:
    """A server in a process group of its own, with the plugin where there is a folder; gives its start-up time."""
    environment = {k: v for k, v in os.environ.items() if k not in (FOLDER_VARIABLE, SWITCH_VARIABLE)}
    environment |= {SWITCH_VARIABLE: "0"} if folder is None else {FOLDER_VARIABLE: str(folder)}
    with log.open("wb") as output:
        process = subprocess.Popen(
            shlex.split(command), env=environment, stdout=output, stderr=output, start_new_session=True
        )
        try:
            yield ready(url, process, seconds)
        finally:
            stop(process, STOP_SECONDS)


def stop(process: subprocess.Popen[bytes], seconds: float) -> None:
    """End a server and all that it started: they have a process group of their own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    with contextlib.suppress(ProcessLookupError):  # also ranks that their parent left behind
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def end_on_signals() -> None:
    """Let SIGTERM and SIGHUP end this process through its ``finally`` clauses, as SIGINT does: its server must not stay behind."""

    def ended(number: int, frame: Any) -> None:
        signal.signal(number, signal.SIG_IGN)  # once: stopping the server takes a moment
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, ended)


def start_ups(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Start-up times in turns; printed and returned."""
    times: dict[str, list[float]] = {"without": [], "with": []}
    log = Path(tempfile.gettempdir()) / f"server_overhead.{os.getpid()}.log"
    print(f"server's log: {log}", file=sys.stderr)
    for number in range(options.starts):
        for way in ("without", "with") if number % 2 == 0 else ("with", "without"):
            with started(
                options.start_command, options.url, folder if way == "with" else None, log, options.start_seconds
            ) as seconds:
                times[way].append(seconds)
    row = {f"{way}_s": statistics.median(values) for way, values in times.items()}
    row |= ratio(times["with"], times["without"])
    print(
        f"start-up: {row['without_s']:.2f} s without, {row['with_s']:.2f} s with the plugin, ratio {row['ratio']:.4f} "
        f"({row['low']:.4f}..{row['high']:.4f}) of {options.starts} pairs"
    )
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:30000")
    parser.add_argument("--dir", type=Path, help="the server's collector folder; made anew with --start-command")
    parser.add_argument("--api", default="auto", help="auto, chat, completions or generate")
    parser.add_argument("--max-tokens", type=int, default=400)
    parser.add_argument("--input-ids", type=int, default=0, help="send this many token ids instead of text")
    parser.add_argument("--rounds", type=int, default=20, help="0: start-up alone")
    parser.add_argument("--windows", action="store_true", help="a state with the default windows, too")
    parser.add_argument("--start-command", help="command that starts the server at --url")
    parser.add_argument(
        "--starts", type=int, default=3, help="pairs of starts that are timed; 0: only the one that serves"
    )
    parser.add_argument("--start-seconds", type=float, default=900, help="longest wait for a server")
    parser.add_argument("--json", type=Path, help="write all figures there")
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    end_on_signals()
    with contextlib.ExitStack() as stack:
        folder = options.dir or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if options.start_command:
            if options.starts:
                figures["start_up"] = start_ups(options, folder)
            if options.rounds:
                log = Path(tempfile.gettempdir()) / f"server_overhead.{os.getpid()}.log"
                stack.enter_context(started(options.start_command, options.url, folder, log, options.start_seconds))
        elif options.dir is None:
            parser.error("--dir names the folder that the server was started with (SPECANALYZE_DIR)")
        if options.rounds:
            endpoint = find_endpoint(options.url, options.api, key=None, input_ids=options.input_ids > 0, timeout=120)
            prompt = input_ids(options.input_ids) if options.input_ids else LONG_PROMPT
            alternation = Alternation(endpoint, folder, prompt, options.max_tokens)
            alternation.settle()
            if not any(alive(status) is not False for status in read_statuses(folder)):
                raise SystemExit(f"no rank announced itself in {folder}: was the server started with it?")
            states = ["idle", "idle again", "phases", *(["windows"] if options.windows else [])]
            found = alternate(alternation, states, options.rounds)
            print(f"{options.url} ({endpoint.api}): {options.rounds} rounds of {options.max_tokens} tokens a request")
            print(
                f"not counted: a request of {SETTLE_TOKENS} tokens after each change of state (its first cycles arm the ranks), "
                "the first round, and of each request what comes up to its first chunk: prefill and first step"
            )
            for state, count in alternation.unprepared.items():
                print(
                    f"{state}: ranks still prepared their recording when {count} of {options.rounds + 1} requests began"
                )
            figures["unprepared"] = alternation.unprepared
            figures["requests"] = report(found)
            figures["rounds"] = found
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
