"""What a rank says of itself, and which process it means."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from speccollect.control.process import own_start
from speccollect.control.status import RankStatus, alive, read_status, status_path, write_status
from speccollect.control.wait import wait_for_ranks
from speccollect.control.word import recording_folder
from speccollect.rank.claim import claim, other_process
from speccollect.rank.identity import Identity, find_identity
from specschema.errors import TraceError


@pytest.fixture
def mine() -> Identity:
    return find_identity(0)


def of_another(folder: Path, identity: Identity, **told: int | str | None) -> RankStatus:
    """A status that another process left in our rank's name."""
    status = dataclasses.replace(identity.status("recording", 1), **told)  # type: ignore[arg-type]
    write_status(folder, status)
    return status


def test_a_status_survives_its_file_and_names_a_living_process(tmp_path: Path, mine: Identity) -> None:
    written = of_another(tmp_path, mine)
    assert read_status(status_path(tmp_path, 0)) == written
    assert written.started is not None
    assert written.namespace is not None
    assert alive(written) is True


def test_a_number_that_is_used_again_is_another_process(tmp_path: Path, mine: Identity) -> None:
    """The rank is gone; a process that began later has its number."""
    other = of_another(tmp_path, mine, pid=os.getppid(), started=1)
    assert alive(other) is False
    assert other_process(tmp_path, mine) is None
    assert wait_for_ranks(tmp_path, 1, timeout=30) == []


def test_a_process_of_another_container_is_unknown(tmp_path: Path, mine: Identity) -> None:
    """Containers on the host's network have its name, and numbers of their own."""
    other = of_another(tmp_path, mine, namespace="pid:[1]", pid=4_000_000)
    assert alive(other) is None
    assert wait_for_ranks(tmp_path, 1, timeout=0.1) == [
        "rank 0 (process 4000000) is still recording after 0 s: what it has finished is kept"
    ]


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"pid": os.getppid(), "started": None}, "is already recorded by process"),
        ({"namespace": "pid:[1]"}, "belongs to process .* of another host or container"),
        ({"host": "elsewhere"}, "belongs to process .* of another host or container"),
        ({"started": 1}, "was started again during recording 1"),
        ({"recording": 0}, "was started again during recording 1"),
    ],
)
def test_a_taken_rank_says_by_whom(
    tmp_path: Path, mine: Identity, told: dict[str, int | str | None], message: str
) -> None:
    of_another(tmp_path, mine, **told)
    recording_folder(tmp_path, 1).mkdir()
    claim(tmp_path, mine, 1)
    with pytest.raises(TraceError, match=message):
        claim(tmp_path, mine, 1)


def test_statuses_of_older_releases_are_read(tmp_path: Path, mine: Identity) -> None:
    content = dataclasses.asdict(mine.status("idle"))
    del content["started"], content["namespace"]
    path = status_path(tmp_path, 0)
    path.write_text(json.dumps(content))
    status = read_status(path)
    assert status is not None
    assert (status.started, status.namespace, alive(status)) == (None, None, True)


@pytest.mark.parametrize("broken", [{"started": "soon"}, {"namespace": 7}])
def test_what_is_no_status_is_none(tmp_path: Path, mine: Identity, broken: dict[str, object]) -> None:
    path = status_path(tmp_path, 0)
    path.write_text(json.dumps(dataclasses.asdict(mine.status("idle")) | broken))
    assert read_status(path) is None


def test_a_child_tells_its_own_start(mine: Identity) -> None:
    code = "import os; from speccollect.control.process import own_start; print(own_start(os.getpid())[0])"
    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert int(told) >= (own_start(os.getpid())[0] or 0)
    assert int(told) > 0
