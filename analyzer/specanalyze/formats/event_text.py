"""Cuts the text of a Chrome trace at event boundaries and decodes it piece by piece, so that no file has to fit in memory.

A cut is tried at a likely place and proven by decoding: text that starts at an event and decodes as a list of values can
only end between two events.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final, Generic, TypeVar

import msgspec

from specanalyze.formats import bounded_json, json_repair
from specanalyze.formats.event_boundaries import BOUNDARY, COMMA, last_cuts, scan
from specanalyze.formats.file_text import FileText
from specschema.errors import TraceError

T = TypeVar("T")

_EVENTS_KEY: Final = re.compile(rb'"traceEvents"\s*:\s*\[')
_LIST_END: Final = re.compile(rb"(?:\A\s*|\}\s*(?:,\s*)?)\]")
_BYTE: Final = re.compile(r"\(byte (\d+)\)")
_EVENT_LIMIT: Final = 16 << 20
"""Text that one event may take."""
_LONGEST_WORD: Final = 16
_BLANK: Final = b"\0 \t\r\n"
"""A file whose writer was killed, or whose disk was full, may hold zero bytes in place of its text."""
_CLOSES: Final = 200
"""Closing brackets looked at from the end of the file backwards."""
_PEEK_BYTES: Final = 1 << 20
"""End of the file that is looked at for members behind the events."""
_HEADER_LIMIT: Final = 64 << 20
_FOOTER_LIMIT: Final = 64 << 20
_HEADER_TRIES: Final = 64
"""Places that look like the beginning of the events and may stand inside a string or a nested object."""
_MOST_BROKEN_ROWS: Final = 5_000
"""Rows that salvaging tries to read one by one: each takes many times as long as a whole one."""
_SALVAGE_JOIN: Final = 8
"""Pieces that may belong to one event (nested objects) when broken rows are looked for."""

_OBJECT: Final = msgspec.json.Decoder(dict[str, Any], float_hook=str)


class NotATraceError(TraceError):
    """The file is no Chrome trace; a folder may hold such files beside the trace's."""


class EventText(Generic[T]):
    """The events of one Chrome trace, decoded batch by batch.

    Attributes:
        metadata: top-level members beside ``traceEvents``; those behind the events only once ``batches`` is exhausted.
            Numbers with a decimal point are kept as text.
        repairs: what was repaired (keys of json_repair.FAULTS).
        lost: lines about what salvaging left out.
    """

    def __init__(self, source: FileText, decode: Callable[[bytes], list[T]], *, salvage: bool = False) -> None:
        self.metadata: dict[str, Any] = {}
        self.repairs: Counter[str] = Counter()
        self.lost: list[str] = []
        self._source = source
        self._name = source.path.name
        self._decode = decode
        self._salvage = salvage
        self._is_list = False
        self._byte = 0
        self._dropped = 0

    def batches(self) -> Iterator[list[T]]:
        """Decoded events, in file order.

        Raises:
            NotATraceError: no ``traceEvents`` and no list of events.
            TraceError: the text ends early, or is not JSON in a way that can't be repaired with certainty.
        """
        chunks = self._source.chunks()
        rest = self.open(chunks)
        enough = 0
        for chunk in chunks:
            rest += chunk
            if len(rest) < enough:
                continue
            events, used, ended = self._head(rest)
            # Text that could not be cut is tried again when there is twice as much of it, so that all tries together stay linear.
            enough = 0 if events or used else 2 * len(rest)
            if events:
                yield events
            if ended:
                yield from self._tail(rest[used:], chunks)
                return
            self._byte += used
            rest = rest[used:]
        yield from self._end(rest)
        if self._source.early_end and not self.lost:
            self.lost.append(f"{self._name}: {self._source.early_end}, but its text is whole")
        if self._dropped:
            self.lost.append(f"{self._name}: {self._dropped} broken row{'s' if self._dropped > 1 else ''} left out")

    def peek(self) -> dict[str, Any]:
        """Top-level members beside the events, without decoding an event; those behind the events only if the file is whole.

        Reads the whole file only where the members before the events do not say the rank.
        """
        chunks = self._source.chunks()
        text = self.open(chunks)
        if "distributedInfo" not in self.metadata and not self._is_list:
            for chunk in chunks:
                text = text[-_PEEK_BYTES:] + chunk
            for close in [m.end() - 1 for m in _LIST_END.finditer(text)][: -_CLOSES - 1 : -1]:
                footer = self._footer(text[close + 1 :])
                if footer is not None:
                    self.metadata.update(footer)
                    break
        return self.metadata

    def open(self, chunks: Iterator[bytes]) -> bytes:
        """Read up to the first event, fill ``metadata``; the text behind the opening bracket."""
        text = b""
        enough = 0
        for chunk in chunks:
            text += chunk
            if len(text) < enough:
                continue
            enough = 2 * len(text)
            start = self._events_start(text)
            if start is not None:
                self._byte += start
                return text[start:]
            if len(text) > _HEADER_LIMIT:
                break
        else:
            start = self._events_start(text)  # what came since the last try
            if start is not None:
                self._byte += start
                return text[start:]
        if not text.strip(_BLANK) and not self._source.early_end:
            what = "holds nothing but zero bytes" if b"\0" in text else "is empty"
            raise TraceError(f"{self._name} {what}: the file ends early, the profiled process was probably killed")
        unclosed = text.lstrip()[:1] in b"{[" and text.rstrip()[-1:] not in b"}]"
        if self._source.early_end or unclosed or _stops(text.strip()):
            raise self._cut_short(len(text))
        raise NotATraceError(f"{self._name} has no traceEvents: it is not a torch.profiler (Kineto or Chrome) trace")

    def _events_start(self, text: bytes) -> int | None:
        lead = len(text) - len(text.lstrip(b"\xef\xbb\xbf \t\r\n"))
        if text[lead : lead + 1] == b"[":
            self._is_list = True
            return lead + 1
        for found in islice(_EVENTS_KEY.finditer(text), _HEADER_TRIES):
            header = self._object(text[lead : found.start()].rstrip().removesuffix(b",") + b"}", repair=True)
            if header is not None:  # else the key stood inside a string or a nested object
                self.metadata.update(header)
                return found.end()
        return None

    def _object(self, text: bytes, *, repair: bool) -> dict[str, Any] | None:
        """Members of text that is one JSON object, perhaps after a repair, else None."""
        try:
            return bounded_json.decode(_OBJECT, text)
        except msgspec.DecodeError:
            if not repair:
                return None
        fixed, counts = json_repair.repaired(text)
        value = self._object(fixed, repair=False)
        if value is not None:
            self.repairs += counts
        return value

    def _head(self, text: bytes) -> tuple[list[T], int, bool]:
        """Events at the start of ``text``, how many bytes they take, and whether the list of events ended there."""
        cuts = last_cuts(text)
        if not cuts:
            return self._uncut(text)
        for end, after in cuts:
            events = self._whole(memoryview(text)[:end])  # ends in }: nothing to strip, so no copy for that
            if events is not None:
                return events, after, False
        if self.repairs:  # what needed a repair once will need it again
            events = self._repaired(text[: cuts[0][0]])
            if events is not None:
                return events, cuts[0][1], False
        cut, close = scan(text)
        if cut is not None:
            events = self._whole(text[: cut[0]])
            if events is not None:
                return events, cut[1], False
        if close is not None:
            events = self._repaired(text[:close])
            if events is not None:
                self._note_comma(text[:close])
                return events, close + 1, True
        # Not a matter of the cut: something in the text needs a repair, which again proves the cut, or an event is
        # larger than the text.
        for end, after in cuts:
            events = self._repaired(text[:end])
            if events is not None:
                return events, after, False
        if len(text) < _EVENT_LIMIT and self._is_beginning(text):
            return [], 0, False
        end, after = cuts[0]
        return self._events(text[:end]), after, False

    def _uncut(self, text: bytes) -> tuple[list[T], int, bool]:
        """Text without a place between two events: a short one needs more; a long one is the last event and what follows it."""
        if len(text) < _EVENT_LIMIT:
            return [], 0, False
        close = scan(text)[1]
        events = None if close is None else self._repaired(text[:close])
        if close is None or events is None:
            raise self._fault(text, f"one event takes more than {_EVENT_LIMIT >> 20} MiB", 1)
        self._note_comma(text[:close])
        return events, close + 1, True

    def _note_comma(self, events: bytes) -> None:
        """Count a comma behind the last event, which JSON does not allow."""
        self.repairs["comma"] += events.rstrip().endswith(b",")
        self.repairs = +self.repairs

    def _is_beginning(self, text: bytes) -> bool:
        """Whether more text could make this a list of values, perhaps after a repair."""
        fixed, _ = json_repair.repaired(text)
        try:
            self._decode(b"[" + fixed)
        except msgspec.DecodeError as error:
            at = _BYTE.search(str(error))
            # Without a place the text only stops too early; with one at its very end it stops inside a word or an escape.
            return at is None or int(at.group(1)) > len(fixed) - _LONGEST_WORD
        return False

    def _whole(self, text: bytes | memoryview) -> list[T] | None:
        """Events of text that is a list of values as it stands, else None."""
        if isinstance(text, bytes):
            text = text.rstrip().removesuffix(b",")
        try:
            return self._decode(b"".join((b"[", text, b"]")))
        except msgspec.DecodeError:
            return None

    def _end(self, text: bytes) -> Iterator[list[T]]:
        """The last events, the end of their list, and what follows."""
        candidate: tuple[int, dict[str, Any]] | None = None
        close_at: int | None = None
        scanned = False
        for close in [m.end() - 1 for m in _LIST_END.finditer(text)][: -_CLOSES - 1 : -1]:
            footer = self._footer(text[close + 1 :])
            if footer is None:
                continue
            candidate = (close, footer)
            events = self._whole(text[:close])
            if events is None:
                if not scanned:
                    close_at, scanned = scan(text)[1], True
                if close_at is not None and close_at < close:
                    candidate = None  # the list of events ended before: this is the end of another list
                    continue
                events = self._events(text[:close])
            self._note_comma(text[:close])
            self.metadata.update(footer)
            yield events
            return
        if not scanned:
            close_at = scan(text)[1]
        if candidate is None and close_at is not None:
            behind = text[close_at + 1 :]
            footer = self._footer(behind, repair=True)
            unclosed = not self._is_list and _stops(b"{" + behind.strip().removeprefix(b","))
            ends = text.rstrip()[-1:] in (b"}", b"]") and not unclosed
            if footer is None and not self._source.early_end and ends:
                raise self._fault(text, "what follows the events can't be read", close_at + 1)
            candidate = None if footer is None else (close_at, footer)
        if candidate is not None:
            self.metadata.update(candidate[1])
            self._note_comma(text[: candidate[0]])
            yield self._events(text[: candidate[0]])
            return
        yield from self._cut_off(text)

    def _cut_off(self, text: bytes) -> Iterator[list[T]]:
        """The whole events of a text that stops inside the list of events."""
        if not self._salvage:
            raise self._cut_short(self._byte + len(text))
        whole = 0
        for end in [m.end() for m in re.finditer(rb"\}", text)][: -_CLOSES - 1 : -1]:
            events = self._whole(text[:end])
            if events is not None:
                whole = end
                yield events
                break
        else:
            cuts = last_cuts(text)
            if cuts:
                whole = cuts[0][0]
                yield self._events(text[:whole])
        comma = COMMA.match(text, whole)
        whole = comma.end() if whole and comma else whole
        self.lost.append(
            f"{self._name} ends early: everything up to byte {self._byte + whole} was read; "
            f"{len(text) - whole} bytes of a cut row and all that should follow are lost"
        )

    def _tail(self, text: bytes, chunks: Iterator[bytes]) -> Iterator[list[T]]:
        """What follows a list of events that ended long before the file does."""
        for chunk in chunks:
            text += chunk
            if len(text) > _FOOTER_LIMIT:
                raise TraceError(f"{self._name} has more than {_FOOTER_LIMIT >> 20} MiB behind its events")
        footer = self._footer(text, repair=True)
        if footer is None:
            if not self._salvage:
                raise self._cut_short(self._byte + len(text))
            self.lost.append(f"{self._name} ends early: its events are whole, the metadata behind them are lost")
            footer = {}
        self.metadata.update(footer)
        yield from ()

    def _footer(self, text: bytes, *, repair: bool = False) -> dict[str, Any] | None:
        text = text.strip()
        if self._is_list:
            return None if text else {}
        if not text.startswith((b",", b"}")):
            return None
        return self._object(b"{" + text.removeprefix(b","), repair=repair)

    def _events(self, text: bytes) -> list[T]:
        """Events of text that may need a repair."""
        events = self._repaired(text)
        if events is not None:
            return events
        if self._salvage:
            return self._whole_rows(text)
        raise self._fault(text)

    def _repaired(self, text: bytes) -> list[T] | None:
        """Events of text that is a list of values, as it stands or after a certain repair, else None."""
        events = self._whole(text)
        if events is None:
            fixed, counts = json_repair.repaired(text)
            events = self._whole(fixed)
            if events is not None:
                self.repairs += counts
        return events

    def _whole_rows(self, text: bytes) -> list[T]:
        """Events of the rows that decode; the others are counted. Only for salvaging."""
        bounds = [0, *(m.end() for m in BOUNDARY.finditer(text)), len(text)]
        events: list[T] = []
        i = 0
        while i + 1 < len(bounds):
            for j in range(i + 1, min(i + 1 + _SALVAGE_JOIN, len(bounds))):
                piece = text[bounds[i] : bounds[j]]
                row = self._repaired(piece)
                if row is not None:
                    events += row
                    i = j
                    break
            else:
                self._dropped += 1
                i += 1
                if self._dropped > _MOST_BROKEN_ROWS:
                    raise self._fault(
                        text, f"more than {_MOST_BROKEN_ROWS} rows are broken: nothing is worth salvaging"
                    )
        return events

    def _lines_before(self, byte: int) -> int:
        """Ends of lines before a place: counted in a second pass, as only a message needs them."""
        lines = 0
        for chunk in FileText(self._source.path).chunks():
            lines += chunk.count(b"\n", 0, byte)
            byte -= len(chunk)
            if byte <= 0:
                break
        return lines

    def _fault(self, text: bytes, reason: str = "", at: int = 0) -> TraceError:
        if not reason:
            try:
                self._decode(b"[" + text.rstrip().removesuffix(b",") + b"]")
            except msgspec.DecodeError as error:
                reason = str(error)
            found = _BYTE.search(reason)
            at = max(0, int(found.group(1)) - 1) if found else 0
        line = 1 + self._lines_before(self._byte + at)
        column = at - (text.rfind(b"\n", 0, at) + 1) + 1
        reason = _BYTE.sub("", reason).removeprefix("JSON is malformed: ").strip()
        return TraceError(
            f"{self._name} is not valid JSON at line {line} column {column} (byte {self._byte + at}): {reason}. "
            "Names with unescaped quotes come from with_stack=True of older PyTorch: record again without it, "
            "or leave the broken rows out with --salvage"
        )

    def _cut_short(self, size: int) -> TraceError:
        why = self._source.early_end or f"its text stops after {size} bytes"
        return TraceError(
            f"{self._name} ends early ({why}): the profiled process was probably killed while writing; "
            "record again, or read what is whole with --salvage"
        )


def _stops(text: bytes) -> bool:
    """Whether text that begins like an object stops before its end."""
    try:
        bounded_json.decode(_OBJECT, text)
    except msgspec.DecodeError as error:
        return text.startswith(b"{") and "truncated" in str(error)
    return False
