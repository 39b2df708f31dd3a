"""A trace fit to attach to a public issue: what names a model, a person, a machine or a path is taken out.

Texts are let through by name, not kept out by name: a setting that this module does not know loses its value. Numbers stay.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any, Final

import polars as pl

from specanalyze.trace import RankSource, RankTrace, Trace

REDACTED: Final = "redacted"
LEAVES: Final = (
    "kernel names, and the names of launch calls, copies and CUDA graph nodes",
    "all times, counts, sizes, device, stream, process and thread numbers",
    "module paths and classes of the node map (they tell the model's architecture, not its name)",
    "names of phases and operators, without paths and addresses",
    "GPU model, driver, CUDA, NCCL, torch and server versions",
    "names of all settings, their numbers, and words of the settings that are known to name no one",
)
"""What a redacted trace still tells."""

_OWN_WORDS: Final = ("kernel", "memcpy", "memset", "launch", "node")
"""Kinds whose names come from compiled code, not from people."""
_PATH: Final = re.compile(r"(?:[A-Za-z]:\\|\\\\|~/|(?<![\w>)\]])/)(?:[^\s\"'<>|:;,()\[\]]+)")
_ADDRESS: Final = re.compile(
    r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)*|\b[a-z][a-z0-9+.-]*://\S+|\b(?:\d{1,3}\.){3}\d{1,3}\b(?::\d+)?"
    r"|\b[\w-]+(?:\.[\w-]+)*\.(?:com|org|net|io|ai|dev|edu|local|internal|corp|lan|cluster)\b",
    re.IGNORECASE,
)
_REPOSITORY: Final = re.compile(r"\b[A-Za-z][\w.-]*/[A-Za-z][\w.-]*(?:[/.-][\w.-]+)*")
"""``Qwen/Qwen3-30B-A3B``: how models are named."""

_WORD: Final = re.compile(r"[A-Za-z0-9_+.-]{0,32}")
_NUMBER: Final = re.compile(
    r"[+-]?\d{1,9}(?:\.\d{1,9})?(?:,\d{1,4})*|true|false|yes|no|on|off|auto|none", re.IGNORECASE
)
_TEXTS_KEPT: Final = re.compile(
    r"recording\.(?:tool|version|source|format|device|told_by|nsight_systems|export_schema)|recording\.(?:tiers|unknown)\[\]"
    r"|recording\.windows\[\]\.(?:profiler|tier|backend)|recording\.totals\.\w+\.told_by"
    r"|clock\.(?:unit|epoch)|clock\.ranks\.\w+\.clock|ranks\[\]\.(?:device|key)"
    r"|environment\.(?:device|python|torch|cuda|driver|cuda_driver|cuda_runtime|hip_driver|hip_runtime|cupti|server|server_version|nccl)"
    r"|environment\.server\.(?:name|version)|environment\.nccl\.(?:version|torch_version)|environment\.packages\.[\w-]+"
    r"|environment\.gpus?(?:\[\])?(?:\.(?:name|model|links))?(?:\[\])?|environment\.links\[\]\.\w+|environment\.model\.(?:torch_dtype|dtype)"
    r"|environment\.differs_by_rank(?:\[\])?"
)
_GPU_IDS: Final = re.compile(r".*(?:uuid|serial|pci|bus_id).*", re.IGNORECASE)
_WORDS_KEPT: Final = re.compile(
    r"(?:environment\.server_args|environment\.server\.args)\.(?:\w*(?:backend|dtype|policy|algorithm|strategy|method|mode|precision|layout|match_type|role)|"
    r"device|quantization|load_format|model_impl|trace_modules|sampling_defaults)"
    r"|environment\.variables\.NCCL_(?:ALGO|PROTO|P2P_LEVEL|NET_GDR_LEVEL|SHM_LEVEL|VERSION|NET|CROSS_NIC|DEBUG)"
    r"|environment\.variables\.(?:CUDA_MODULE_LOADING|CUDA_VERSION|CUDA_DEVICE_ORDER)"
)
"""Settings whose words come from a fixed list of the server's or the library's."""
_NUMBERS_DROPPED: Final = re.compile(r".*(?:port|seed|pid|addr|uid|gid)", re.IGNORECASE)
_DROPPED: Final = (
    "recording.warnings",
    "recording.problems",
    "environment.command_line",
    "environment.server_args._resolved_overrides",
)
"""Free text: warnings name files, command lines name everything."""
_GROUP: Final = re.compile(
    r"[0-9]+|(?:tp|dp|pp|ep|world|moe|attn|default|undefined|pg|group|cpu|_)[\w:]{0,12}", re.IGNORECASE
)
_HASH: Final = re.compile(r"[0-9a-f]{12,64}")
_KEY: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}|\d{1,6}")


@dataclass
class Redaction:
    """What was taken out.

    Attributes:
        counts: what -> how many distinct values.
    """

    counts: Counter[str] = field(default_factory=Counter)
    _hosts: dict[str, str] = field(default_factory=dict)
    _requests: dict[str, str] = field(default_factory=dict)
    _groups: dict[str, str] = field(default_factory=dict)

    def host(self, name: str | None) -> str | None:
        """``host1``: a hash of a host's name can be found out by trying names, so it goes as well."""
        if name is None:
            return None
        key = (
            name if _HASH.fullmatch(name) else hashlib.sha256(name.encode()).hexdigest()[:12]
        )  # as trace_writer writes it
        return self._numbered(self._hosts, key, "host", "hosts")

    def request(self, name: str | None) -> str | None:
        return name if name is None else self._numbered(self._requests, name, "request", "request ids")

    def group(self, name: str | None) -> str | None:
        if name is None or _GROUP.fullmatch(name):
            return name
        return self._numbered(self._groups, name, "group", "process groups")

    def _numbered(self, known: dict[str, str], name: str, word: str, what: str) -> str:
        if name not in known:
            known[name] = f"{word}{len(known) + 1}"
            self.counts[what] += 1
        return known[name]

    def text(self, text: str) -> str:
        """A name that people gave, without paths, addresses and names of models."""
        found = text
        for pattern, word in ((_ADDRESS, "<address>"), (_PATH, "<path>"), (_REPOSITORY, "<name>")):
            found = pattern.sub(word, found)
        if found != text:
            self.counts["names with paths or addresses"] += 1
        return found


def redact(trace: Trace) -> tuple[Trace, Redaction]:
    """The trace without what names a model, a person, a machine or a path; its ranks are read when asked for.

    Returns:
        The trace to write, and what was taken out (complete once all ranks were read).

    Raises:
        TraceError: it holds no rank.
    """
    trace.refuse_empty()
    redaction = Redaction()
    sections = {name: _section(value, name, redaction) for name, value in trace.metadata.items()}
    sections = {name: value for name, value in sections.items() if isinstance(value, (dict, list))}
    sources = tuple(
        RankSource(source.key, "trace", lambda source=source: _rank(source.read(), redaction))  # type: ignore[misc]
        for source in trace.sources
    )
    # Warnings that reading brings up name files: they must not reach the new trace.
    return Trace(name="redacted trace", sources=sources, metadata=sections, warnings=[]), redaction


def _rank(rank: RankTrace, redaction: Redaction) -> RankTrace:
    events = rank.events
    if "request_ids" in events.columns:
        ids = events["request_ids"].explode().drop_nulls().unique(maintain_order=True).to_list()
        changed = {name: redaction.request(name) for name in ids}
        requests = pl.element().replace_strict(changed, default=None, return_dtype=pl.String)
        events = events.with_columns(pl.col("request_ids").list.eval(requests))
    # Texts are looked at once each; a column in which none changes stays the dictionary that it is.
    given = ~pl.col("kind").cast(pl.String).is_in(_OWN_WORDS)
    distinct = events.lazy().filter(given).select(pl.col("name").unique(maintain_order=True)).collect()
    people = _changed(distinct.get_column("name"), redaction.text)
    if people:
        names = pl.col("name").cast(pl.String)
        events = events.with_columns(pl.when(given).then(names.replace(people)).otherwise(names).alias("name"))
    request = pl.col("kind").cast(pl.String) == "request"
    if events.select(request.any()).item():
        named = pl.when(request).then(pl.lit("request")).otherwise(pl.col("name").cast(pl.String))
        events = events.with_columns(named.alias("name"))
    for column in ("group", "module", "module_class", "op", "dtype", "node_type"):
        if column in events.columns:
            change = redaction.group if column == "group" else redaction.text
            words = _changed(events.get_column(column).unique(maintain_order=True), change)
            if words:
                events = events.with_columns(pl.col(column).cast(pl.String).replace(words))
    return replace(rank, events=events, source="trace", host=redaction.host(rank.host))


def _changed(texts: pl.Series, change: Callable[[str], str | None]) -> dict[str, str | None]:
    """Those of some texts that are to be others."""
    changed = {text: change(text) for text in texts.cast(pl.String).drop_nulls().to_list()}
    return {text: other for text, other in changed.items() if other != text}


def _section(value: Any, name: str, redaction: Redaction) -> Any:
    """A metadata value without the texts that are not let through; lists keep their length, objects their members."""
    if name in _DROPPED:
        if value:
            redaction.counts[f"{name.rpartition('.')[2].strip('_')} (whole)"] += 1
        return None
    if isinstance(value, Mapping):
        return {_key(str(key), redaction): _section(inner, f"{name}.{key}", redaction) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_section(inner, f"{name}[]", redaction) for inner in value]
    if isinstance(value, str):
        return _text(value, name, redaction)
    if isinstance(value, (int, float)) and not isinstance(value, bool) and name.startswith("environment."):
        setting = name.rpartition(".")[2]
        if _NUMBERS_DROPPED.fullmatch(setting) or _GPU_IDS.fullmatch(setting):
            redaction.counts["values of settings"] += 1
            return None
    return value


def _key(key: str, redaction: Redaction) -> str:
    return key if _KEY.fullmatch(key) else redaction.text(key) if "/" in key or "@" in key else REDACTED


def _text(value: str, name: str, redaction: Redaction) -> str | None:
    member = name.rpartition(".")[2]
    settings = ("environment.variables.", "environment.server_args.", "environment.server.args.")
    if member == "host" and not name.startswith(settings):
        return redaction.host(value)
    if name.endswith("nccl.path"):
        return PurePosixPath(
            value.replace("\\", "/")
        ).name  # the library's own name tells a bundled one from the system's
    if name.endswith("process_groups[].name"):
        return redaction.group(value)
    if _TEXTS_KEPT.fullmatch(name) and not _GPU_IDS.fullmatch(member):
        return redaction.text(value)
    if _WORDS_KEPT.fullmatch(name) and _WORD.fullmatch(value):
        return value
    if name.startswith(settings) and _NUMBER.fullmatch(value) and not _NUMBERS_DROPPED.fullmatch(member):
        return value
    redaction.counts["values of settings"] += 1
    return REDACTED
