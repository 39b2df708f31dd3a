"""Ranks of the embedded engine in processes of their own, and the places in which they are given trouble."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ordered_rank import MAX_TOKENS, Rank, Starter


@pytest.fixture
def start() -> Iterator[Starter]:
    """Starts ranks that end with the test: ``start(folder, size)``, or more of them with the store's port."""
    from speccollect.demo.parallel import open_store

    started: list[Rank] = []
    stores: list[Any] = []

    def begin(folder: Path, size: int = 1) -> list[Rank]:
        port = 0
        if size > 1:
            stores.append(open_store())
            port = stores[-1].port
        ranks = [Rank(folder, rank, size, port, folder.parent / f"rank{rank}.log") for rank in range(size)]
        started.extend(ranks)
        for rank in ranks:
            rank.answer()
        return ranks

    yield begin
    for rank in started:
        rank.stop()


@pytest.fixture(scope="session")
def one_rank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rank]:
    """A rank for many tests; each attaches it to a folder of its own."""
    rank = Rank(tmp_path_factory.mktemp("first") / "folder")
    rank.answer()
    yield rank
    rank.stop()


@pytest.fixture(scope="session")
def expected_tokens(one_rank: Rank) -> list[list[int]]:
    """What the engine answers when nobody records it."""
    tokens: list[list[int]] = one_rank.ask("serve", max_tokens=MAX_TOKENS)["tokens"]
    return tokens


@pytest.fixture
def rank(one_rank: Rank, tmp_path: Path) -> Iterator[Rank]:
    """The shared rank, listening to a folder of this test."""
    one_rank.folder = tmp_path / "folder"
    one_rank.ask("attach", folder=str(one_rank.folder))
    one_rank.ask("log")
    yield one_rank
    one_rank.ask("heal")
    one_rank.ask("attach", folder=str(tmp_path / "after"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB; skipped where this user may not mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m,mode=0700", "none", str(place)]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no mount command here: no small disk to fill")
    if done.returncode != 0:
        pytest.skip(f"a small disk can't be mounted here ({done.stderr.strip()})")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)
