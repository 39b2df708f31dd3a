"""The control word: what one process writes, another sees; a damaged file is refused."""

from __future__ import annotations

import logging
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from speccollect.config import PHASES_ONLY, WindowSettings
from speccollect.control import word
from speccollect.rank.recorder import Recorder
from specschema.errors import TraceError


def test_settings_survive_the_file(tmp_path: Path) -> None:
    windows = WindowSettings(
        skip=7, warmup=0, record=9, repeat=2, gap=5, cpu_ops=True, details=True, max_events=123, max_seconds=4
    )
    written = word.arm(tmp_path, windows)
    assert word.read_command(tmp_path) == written
    assert (written.generation, written.armed, written.recording, written.windows) == (1, True, 1, windows)


def test_disarm_keeps_the_recording_and_moves_the_generation(tmp_path: Path) -> None:
    word.arm(tmp_path, PHASES_ONLY)
    command = word.disarm(tmp_path)
    assert (command.generation, command.armed, command.recording) == (2, False, 1)
    assert word.arm(tmp_path, PHASES_ONLY).recording == 2


def test_arming_twice_is_refused(tmp_path: Path) -> None:
    word.arm(tmp_path, PHASES_ONLY)
    with pytest.raises(TraceError, match=r"already recording \(number 1\)"):
        word.arm(tmp_path, PHASES_ONLY)


def test_reader_sees_another_process_arm(tmp_path: Path) -> None:
    reader = word.ControlReader(tmp_path)
    assert (reader.generation(), reader.read().armed) == (0, False)
    code = (
        "import sys; from pathlib import Path; from speccollect.control import word; from speccollect import config; "
    )
    code += "word.arm(Path(sys.argv[1]), config.WindowSettings(record=11))"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    assert reader.generation() == 1
    assert reader.read().windows.record == 11
    reader.close()


@pytest.mark.parametrize("offset", [0, 8, 17, 30, 56])
def test_damaged_control_file_keeps_the_rank_disarmed_and_is_logged_once(
    tmp_path: Path, offset: int, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = Recorder(tmp_path)
    recorder.poll()
    word.arm(tmp_path, PHASES_ONLY)
    with open(tmp_path / "control", "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x40]))
    with caplog.at_level(logging.WARNING, logger="speccollect"):
        for _ in range(100):
            recorder.poll()
            assert recorder.begin_cycle("decode", 1, 0, ["a"]) == -1
    assert not recorder.armed
    assert len(caplog.records) == 1
    assert "control" in caplog.text
    recorder.close()


def test_short_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "control").write_bytes(b"SPECCTRL")
    with pytest.raises(TraceError, match="too short"):
        word.ControlReader(tmp_path)


def test_folder_and_file_are_private(tmp_path: Path) -> None:
    path = word.prepare_folder(tmp_path / "new")
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_folder_others_may_write_in_is_refused(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o777)
    with pytest.raises(TraceError, match="chmod 700"):
        word.prepare_folder(tmp_path)


def test_a_folder_that_everybody_makes_files_in_is_refused(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o1777)  # /tmp, in a container whose user is root
    with pytest.raises(TraceError, match=f"name a folder in it: {tmp_path}/specanalyze"):
        word.prepare_folder(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_missing_folder_says_how_to_start_the_server(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="SPECANALYZE_DIR="):
        word.read_command(tmp_path)
