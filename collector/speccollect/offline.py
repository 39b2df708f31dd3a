"""``with speccollect.record("trace.parquet"):`` around an offline engine in this process, its child ranks included."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from speccollect.config import FOLDER_VARIABLE, WindowSettings, parse_windows
from speccollect.control import word
from speccollect.control.wait import wait_for_ranks
from speccollect.rank.recorder import get_recorder
from speccollect.trace.merge import Merged, merge
from speccollect.trace.output_path import refuse_output


@contextmanager
def record(
    output: str | Path,
    *,
    windows: WindowSettings | str | None = None,
    folder: str | Path | None = None,
    force: bool = False,
    timeout: float = 60.0,
) -> Iterator[list[Merged]]:
    """Record what an engine does inside the block, and merge it into one trace.

    The engine's hooks must be in place (``speccollect.plugin``), in this process or in its child ranks. Children that
    are started inside the block find the recording by themselves; those started before it need SPECANALYZE_DIR in
    their environment, set to ``folder``.

    Args:
        output: trace to write.
        windows: which cycles are profiled; text as on the command line, ``"off"`` for phases only.
        folder: the collector's folder; SPECANALYZE_DIR, else a temporary one that is removed afterwards.
        force: overwrite ``output``.
        timeout: seconds to wait for a rank that makes no progress.

    Yields:
        A list that holds the merged trace's description once the block has ended.

    Raises:
        UsageError: ``output`` exists, or it can't be written there.
        TraceError: nothing was recorded, or another recording is running in the folder.
    """
    output = Path(output)
    refuse_output(output, force=force, instead="give another name, or force=True to overwrite it")
    settings = parse_windows(windows) if isinstance(windows, str) else windows or WindowSettings()
    before = os.environ.get(FOLDER_VARIABLE)
    named = folder if folder is not None else before
    place = Path(named) if named else Path(tempfile.mkdtemp(prefix="specanalyze-"))
    recorder = get_recorder()
    if recorder.folder != place:
        recorder.attach_to(place)
    os.environ[FOLDER_VARIABLE] = str(place)
    merged: list[Merged] = []
    try:
        command = word.arm(place, settings)
        try:
            yield merged
        finally:
            word.disarm(place)
            recorder.finish()
            lines = wait_for_ranks(place, command.recording, timeout)
        result = merge(place, output, recording=command.recording, force=force)
        result.problems.extend(lines)
        merged.append(result)
        shutil.rmtree(word.recording_folder(place, command.recording), ignore_errors=True)
    finally:
        if before is None:
            del os.environ[FOLDER_VARIABLE]
        else:
            os.environ[FOLDER_VARIABLE] = before
        if not named:
            recorder.attach_to(None)
            shutil.rmtree(place, ignore_errors=True)
