"""`speccollect request`: arm, send, disarm, wait, merge."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from speccollect.config import WindowSettings
from speccollect.control import word
from speccollect.control.status import alive, read_statuses
from speccollect.control.wait import wait_for_ranks
from speccollect.parts.table import event_table
from speccollect.request.latency import Streamed, summarise
from speccollect.request.stream import Endpoint, request_body, stream_request
from speccollect.trace.merge import Merged, merge
from speccollect.trace.output_path import refuse_output
from specschema.errors import TraceError

LAST_STEP_SECONDS: Final = 0.25
"""The client has the last token when the first rank has processed the last step; the others are a step behind, and a rank that is
disarmed before does not tell of the request's end."""


@dataclass
class Session:
    """What a recorded run of requests gave."""

    merged: Merged
    requests: list[Streamed]
    summary: dict[str, Any]
    problems: list[str] = field(default_factory=list)


def send(
    endpoint: Endpoint,
    bodies: Sequence[dict[str, Any]],
    concurrency: int,
    on_tokens: Callable[[int], None] | None = None,
) -> list[Streamed]:
    """Send all requests, at most ``concurrency`` at a time; results in the order of ``bodies``."""
    results: list[Streamed | None] = [None] * len(bodies)
    lock = threading.Lock()
    waiting = iter(range(len(bodies)))

    def work() -> None:
        while True:
            with lock:
                index = next(waiting, None)
            if index is None:
                return
            results[index] = stream_request(endpoint, bodies[index], on_tokens)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(max(1, min(concurrency, len(bodies))))]
    for thread in threads:
        thread.start()
    for thread in threads:
        # joined in short waits so that an interrupt reaches the main thread
        while thread.is_alive():
            thread.join(0.2)
    return [result for result in results if result is not None]


def request_rows(requests: Sequence[Streamed], rank: int, pid: int) -> pa.Table:
    """Rows of kind ``request``, as the client measured them; they stand with the lowest rank."""
    good = [r for r in requests if r.error is None]
    return event_table(
        len(good),
        {
            "kind": "request",
            "rank": rank,
            "pid": pid,
            "name": "client.request",
            "start_ns": [r.sent_ns for r in good],
            "dur_ns": [r.ended_ns - r.sent_ns for r in good],
            "request_ids": [[r.request_id] if r.request_id else None for r in good],
            "prompt_tokens": [r.prompt_tokens for r in good],
            "completion_tokens": [r.completion_tokens for r in good],
            "first_token_ns": [r.first_token_ns for r in good],
        },
    )


def record_requests(
    folder: Path,
    endpoint: Endpoint,
    bodies: Sequence[dict[str, Any]],
    output: Path,
    *,
    windows: WindowSettings,
    concurrency: int = 1,
    force: bool = False,
    keep: bool = False,
    timeout: float = 60.0,
    expected_ranks: int | None = None,
    on_tokens: Callable[[int], None] | None = None,
) -> Session:
    """Record a server while it answers requests.

    Args:
        folder: the server's collector folder.
        bodies: JSON bodies of the requests.
        output: trace to write.
        keep: keep the ranks' own files after the merge.
        timeout: seconds to wait for a rank that makes no progress.

    Raises:
        UsageError: ``output`` exists, or it can't be written there.
        TraceError: no request succeeded, or no rank recorded anything.
    """
    refuse_output(output, force=force)
    command = word.arm(folder, windows)
    requests: list[Streamed] = []
    try:
        requests = send(endpoint, bodies, concurrency, on_tokens)
        time.sleep(LAST_STEP_SECONDS)
    finally:
        word.disarm(folder)

        def nudge() -> None:
            body = request_body(endpoint, _shortened(bodies[0]), 1, ignore_eos=False, temperature=0)
            stream_request(endpoint, body)

        late = wait_for_ranks(folder, command.recording, timeout, nudge)
    errors = [f"request {i}: {r.error}" for i, r in enumerate(requests) if r.error is not None]
    if len(errors) == len(bodies):
        raise TraceError(f"no request succeeded: {errors[0]}")
    took_part = [s for s in read_statuses(folder) if s.recording == command.recording]
    if not took_part:
        announced = [s for s in read_statuses(folder) if alive(s) is not False]
        failed = [f"rank {s.rank}: {s.message}" for s in announced if s.state == "failed" and s.message]
        if failed:
            why = "; ".join(failed)
        elif announced:
            why = f"{len(announced)} ranks announced themselves there but none saw the request: is it another server's folder?"
        else:
            why = "no process of the server announced itself there: was it started with SPECANALYZE_DIR or `speccollect run`?"
        raise TraceError(f"nothing was recorded in {folder}: {why}")
    lowest = took_part[0]
    summary = summarise(requests)
    merged = merge(
        folder,
        output,
        recording=command.recording,
        force=force,
        expected_ranks=expected_ranks,
        requests=request_rows(requests, lowest.rank, lowest.pid),
        request_summary=summary,
        completion_tokens=summary["completion_tokens"] if not errors else None,
    )
    if not keep:
        shutil.rmtree(word.recording_folder(folder, command.recording), ignore_errors=True)
    return Session(merged, requests, summary, [*errors, *late, *merged.problems])


def _shortened(body: dict[str, Any]) -> str | list[int]:
    """A prompt of the same kind as a request's, but tiny."""
    ids = body.get("input_ids") or (body.get("prompt") if isinstance(body.get("prompt"), list) else None)
    return list(ids[:4]) if ids else "Hi"
