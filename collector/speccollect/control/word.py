"""The control word: a small file through which one command reaches every rank of a host.

Ranks read it with one ``pread`` a cycle and do not map it: a mapped page ends the process (SIGBUS) when somebody
truncates the file, a short read is only an answer.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from speccollect.config import WindowSettings
from specschema.errors import TraceError

MAGIC: Final = b"SPECCTRL"
VERSION: Final = 1
SIZE: Final = 4096
"""One page: a reader of any part of it needs one block of the disk."""

DISARM: Final = 0
ARM: Final = 1

_FLAG_CPU_OPS: Final = 1
_FLAG_STAMPS: Final = 2
_FLAG_DETAILS: Final = 4
_FLAG_CUPTI: Final = 8
_FLAG_MODULES: Final = 16
_FLAG_RANGES: Final = 32

# magic, version, generation, command, flags, recording, skip, warmup, record, repeat, gap, max_events, max_seconds
_BODY: Final = struct.Struct("<8s12I")
_CRC: Final = struct.Struct("<I")
_GENERATION: Final = slice(12, 16)  # bytes of the generation
_RECORDING_FOLDER: Final = re.compile(r"recording(\d{6,})")


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
    flags |= _FLAG_MODULES * w.modules | _FLAG_RANGES * w.ranges
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
        modules=bool(flags & _FLAG_MODULES),
        ranges=bool(flags & _FLAG_RANGES),
        max_events=events,
        max_seconds=seconds,
    )
    return Command(generation=generation, armed=command == ARM, recording=recording, windows=windows)


def prepare_folder(folder: Path) -> Path:
    """Make the folder (0700) and its control file (0600) if they are not there; return the control file's path.

    Raises:
        TraceError: the folder belongs to somebody else, others may write in it, or it can't be written.
    """
    try:
        return _prepare(folder)
    except OSError as error:
        raise _unwritable(folder, error) from error


def _unwritable(folder: Path, error: OSError) -> TraceError:
    return TraceError(
        f"{folder} can't be used ({error.strerror or error}): free it, or name another folder with SPECANALYZE_DIR"
    )


def _prepare(folder: Path) -> Path:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.is_symlink() and folder.lstat().st_uid not in (0, os.getuid()):
        raise TraceError(f"{folder} is a link that somebody else made: name a folder of your own with SPECANALYZE_DIR")
    status = folder.stat()
    if status.st_uid != os.getuid():
        raise TraceError(f"{folder} belongs to user {status.st_uid}: name a folder of your own with SPECANALYZE_DIR")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        # /tmp itself, in a container whose user is root, too: others could put a link there where a file of ours goes
        instead = (
            f"name a folder in it: {folder / 'specanalyze'}" if status.st_mode & stat.S_ISVTX else f"chmod 700 {folder}"
        )
        raise TraceError(f"{folder} can be written by other users: {instead}")
    path = folder / "control"
    if not path.exists():
        command = Command(generation=0, armed=False, recording=0, windows=WindowSettings())
        temporary = folder / f".control.{os.getpid()}.tmp"
        try:
            temporary.touch(mode=0o600)
            temporary.write_bytes(pack(command))
            # link fails where another rank was first; both wrote the same content
            with contextlib.suppress(FileExistsError):
                os.link(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    return path


class ControlReader:
    """A rank's view of the control file: one short read a cycle until the generation moves.

    Attributes:
        word: reads the generation's four bytes, fewer of a truncated file. 0.3 to 0.6 us, most of it the system call; a
            partial object, because a method of Python's costs half as much again.
    """

    def __init__(self, folder: Path) -> None:
        self.path = prepare_folder(folder)
        self._descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        self.word: Callable[[], bytes] = partial(
            os.pread, self._descriptor, _GENERATION.stop - _GENERATION.start, _GENERATION.start
        )
        if os.fstat(self._descriptor).st_size < SIZE:
            self.close()
            raise TraceError(f"{self.path} is too short to be a control file: delete it and restart the server")

    def generation(self) -> int:
        """The generation as a number."""
        return int.from_bytes(self.word(), "little")

    def read(self) -> Command:
        """The whole command.

        Raises:
            TraceError: damaged or truncated (or, for a moment, half written).
        """
        content = os.pread(self._descriptor, _BODY.size + _CRC.size, 0)
        if len(content) < _BODY.size + _CRC.size:
            raise TraceError(f"{self.path} was truncated: put it back, or delete it and restart the server")
        return unpack(content, str(self.path))

    def removed(self) -> bool:
        """Whether the file has lost its name, or its folder has: commands go to another file by now, or to none."""
        own = os.fstat(self._descriptor)
        try:
            named = os.stat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:  # one that can't be looked at may still be there
            return own.st_nlink == 0
        return (named.st_dev, named.st_ino) != (own.st_dev, own.st_ino)

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        # the writer thread may still be reading when the rank turns to another file: the last one closes
        with contextlib.suppress(OSError, AttributeError):
            self.close()


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
    except OSError as error:
        raise TraceError(f"{path} can't be read ({error.strerror or error})") from error


def _write(folder: Path, change: Callable[[Command], Command]) -> Command:
    """Replace the command that stands there by what ``change`` makes of it, while no other command writes."""
    path = prepare_folder(folder)
    try:
        with _locked(folder):
            old = unpack(path.read_bytes(), str(path))
            command = replace(change(old), generation=(old.generation + 1) & 0xFFFFFFFF)
            if command.recording != old.recording:
                recording_folder(folder, command.recording).mkdir(mode=0o700)
            content = pack(command)
            descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                # everything else first, the generation last: a rank that sees the new generation sees the new command
                os.pwrite(descriptor, content[_GENERATION.stop :], _GENERATION.stop)
                os.pwrite(descriptor, content[: _GENERATION.start], 0)
                os.pwrite(descriptor, content[_GENERATION], _GENERATION.start)
            finally:
                os.close(descriptor)
            return command
    except OSError as error:
        raise _unwritable(folder, error) from error


def _next_recording(folder: Path, last: int) -> int:
    """A number that no folder of an earlier recording has: a control file may be younger than they are."""
    matches = (_RECORDING_FOLDER.fullmatch(path.name) for path in folder.iterdir())
    return max([last, *(int(match[1]) for match in matches if match)]) + 1


def arm(folder: Path, windows: WindowSettings) -> Command:
    """Tell every rank to begin a new recording.

    Raises:
        TraceError: a recording is already running there, the control file is damaged, or the folder can't be written.
    """

    def change(current: Command) -> Command:
        if current.armed:
            raise TraceError(
                f"{folder} is already recording (number {current.recording}): `speccollect disarm` first, "
                "or give this server a folder of its own"
            )
        return replace(current, armed=True, windows=windows, recording=_next_recording(folder, current.recording))

    return _write(folder, change)


def disarm(folder: Path) -> Command:
    """Tell every rank to finish its files.

    Raises:
        TraceError: the control file is damaged, or can't be written.
    """
    return _write(folder, lambda current: replace(current, armed=False))
