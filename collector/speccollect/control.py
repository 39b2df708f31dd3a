"""The control word: a small memory-mapped file through which one command reaches every rank of a host."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import stat
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from speccollect.config import WindowSettings
from specschema.errors import TraceError

MAGIC: Final = b"SPECCTRL"
VERSION: Final = 1
SIZE: Final = 4096
"""One page, so that a mapping never ends inside another file's data."""

DISARM: Final = 0
ARM: Final = 1

_FLAG_CPU_OPS: Final = 1
_FLAG_STAMPS: Final = 2
_FLAG_DETAILS: Final = 4
_FLAG_CUPTI: Final = 8

# magic, version, generation, command, flags, recording, skip, warmup, record, repeat, gap, max_events, max_seconds
_BODY: Final = struct.Struct("<8s12I")
_CRC: Final = struct.Struct("<I")
_GENERATION_WORD: Final = 3  # index of the generation among the file's 32-bit words


@dataclass(frozen=True)
class Command:
    """What the control file says."""

    generation: int
    """Rises with every command; ranks look at this word alone until it moves."""
    armed: bool
    recording: int
    """Number of the recording in this folder; its files lie in ``recording_folder``."""
    windows: WindowSettings


def recording_folder(folder: Path, recording: int) -> Path:
    """Folder of one recording's files: FOLDER/recording000001."""
    return folder / f"recording{recording:06d}"


def pack(command: Command) -> bytes:
    """The file's content, SIZE bytes."""
    w = command.windows
    flags = _FLAG_CPU_OPS * w.cpu_ops | _FLAG_STAMPS * w.stamps | _FLAG_DETAILS * w.details | _FLAG_CUPTI * w.cupti
    body = _BODY.pack(
        MAGIC,
        VERSION,
        command.generation,
        ARM if command.armed else DISARM,
        flags,
        command.recording,
        w.skip,
        w.warmup,
        w.record,
        w.repeat,
        w.gap,
        w.max_events,
        w.max_seconds,
    )
    return (body + _CRC.pack(zlib.crc32(body))).ljust(SIZE, b"\0")


def unpack(content: bytes, path: str) -> Command:
    """The command in a control file.

    Raises:
        TraceError: not a control file, of another version, or damaged.
    """
    if len(content) < _BODY.size + _CRC.size or content[: len(MAGIC)] != MAGIC:
        raise TraceError(f"{path} is not a control file of speccollect: delete it and restart the server")
    body = content[: _BODY.size]
    (_, version, generation, command, flags, recording, skip, warmup, record, repeat, gap, events, seconds) = (
        _BODY.unpack(body)
    )
    if version != VERSION:
        raise TraceError(
            f"{path} has control version {version}, this speccollect speaks {VERSION}: "
            "use the speccollect that the server was started with"
        )
    if _CRC.unpack_from(content, _BODY.size)[0] != zlib.crc32(body):
        raise TraceError(f"{path} is damaged (its checksum does not match): delete it and restart the server")
    windows = WindowSettings(
        skip=skip,
        warmup=warmup,
        record=record,
        repeat=repeat,
        gap=gap,
        cpu_ops=bool(flags & _FLAG_CPU_OPS),
        stamps=bool(flags & _FLAG_STAMPS),
        details=bool(flags & _FLAG_DETAILS),
        cupti=bool(flags & _FLAG_CUPTI),
        max_events=events,
        max_seconds=seconds,
    )
    return Command(generation=generation, armed=command == ARM, recording=recording, windows=windows)


def prepare_folder(folder: Path) -> Path:
    """Make the folder (0700) and its control file (0600) if they are not there; return the control file's path.

    Raises:
        TraceError: the folder belongs to somebody else or others may write in it.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    if status.st_uid != os.getuid():
        raise TraceError(f"{folder} belongs to user {status.st_uid}: name a folder of your own with SPECANALYZE_DIR")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not status.st_mode & stat.S_ISVTX:
        raise TraceError(f"{folder} can be written by other users: chmod 700 {folder}")
    path = folder / "control"
    if not path.exists():
        command = Command(generation=0, armed=False, recording=0, windows=WindowSettings())
        temporary = folder / f".control.{os.getpid()}.tmp"
        temporary.touch(mode=0o600)
        temporary.write_bytes(pack(command))
        # link fails where another rank was first; both wrote the same content
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
        temporary.unlink()
    return path


class ControlReader:
    """A rank's view of the control file: one memory read a cycle until the generation moves."""

    def __init__(self, folder: Path) -> None:
        self.path = prepare_folder(folder)
        with open(self.path, "rb") as file:
            if os.fstat(file.fileno()).st_size < SIZE:
                raise TraceError(f"{self.path} is too short to be a control file: delete it and restart the server")
            self._map = mmap.mmap(file.fileno(), SIZE, prot=mmap.PROT_READ)
        self._words = memoryview(self._map).cast("I")

    def generation(self) -> int:
        """The generation word, about 50 ns."""
        return self._words[_GENERATION_WORD]

    def read(self) -> Command:
        """The whole command.

        Raises:
            TraceError: damaged (or, for a moment, half written).
        """
        return unpack(bytes(self._map[: _BODY.size + _CRC.size]), str(self.path))

    def close(self) -> None:
        self._words.release()
        self._map.close()


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Only one command writes at a time."""
    descriptor = os.open(folder / "control.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def read_command(folder: Path) -> Command:
    """The command that stands in a folder.

    Raises:
        TraceError: no control file there, or a damaged one.
    """
    path = folder / "control"
    try:
        return unpack(path.read_bytes(), str(path))
    except FileNotFoundError:
        raise TraceError(
            f"no control file in {folder}: start the server with SPECANALYZE_DIR={folder} (or `speccollect run`)"
        ) from None


def _write(folder: Path, *, armed: bool, windows: WindowSettings | None, next_recording: bool) -> Command:
    path = prepare_folder(folder)
    with _locked(folder):
        old = unpack(path.read_bytes(), str(path))
        command = Command(
            generation=(old.generation + 1) & 0xFFFFFFFF,
            armed=armed,
            recording=old.recording + 1 if next_recording else old.recording,
            windows=windows or old.windows,
        )
        content = pack(command)
        word = slice(4 * _GENERATION_WORD, 4 * _GENERATION_WORD + 4)
        with open(path, "r+b") as file, mmap.mmap(file.fileno(), SIZE) as mapped:
            # everything else first, the generation last: a rank that sees the new generation sees the new command
            mapped[word.stop : SIZE] = content[word.stop :]
            mapped[: word.start] = content[: word.start]
            mapped[word] = content[word]
        return command


def arm(folder: Path, windows: WindowSettings) -> Command:
    """Tell every rank to begin a new recording.

    Raises:
        TraceError: a recording is already running there, or the control file is damaged.
    """
    prepare_folder(folder)
    current = read_command(folder)
    if current.armed:
        raise TraceError(
            f"{folder} is already recording (number {current.recording}): `speccollect disarm` first, "
            "or give this server a folder of its own"
        )
    command = _write(folder, armed=True, windows=windows, next_recording=True)
    recording_folder(folder, command.recording).mkdir(mode=0o700, exist_ok=True)
    return command


def disarm(folder: Path) -> Command:
    """Tell every rank to finish its files."""
    return _write(folder, armed=False, windows=None, next_recording=False)
