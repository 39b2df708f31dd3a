"""One closed file of a recording."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from speccollect.parts.part_file import read_part, write_part
from speccollect.parts.table import event_table


def test_a_folder_may_have_any_name_and_the_file_is_the_users_alone(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/not \xff UTF-8"))
    folder.mkdir()
    path = folder / "rank00000.segment0000.parquet"
    before = os.umask(0)
    try:
        size = write_part(path, event_table(2, {"kind": "mark", "rank": 0, "pid": 1, "start_ns": [1, 2]}), {})
    finally:
        os.umask(before)
    assert os.listdir(folder) == [path.name]
    status = os.stat(path)
    assert (size, stat.S_IMODE(status.st_mode)) == (status.st_size, 0o600)
    with open(path, "rb") as file:
        assert read_part(file)["start_ns"].to_pylist() == [1, 2]  # type: ignore[arg-type]  # Arrow opens UTF-8 names alone
