"""What is fuzzed: each target makes files out of an input's bytes and gives the arguments of a command that reads them."""

from __future__ import annotations

import gzip
import json
import sqlite3
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from dice import Dice
from hostile_json import VALUES, changed, text

from specanalyze.formats.load import open_trace
from specanalyze.formats.nsys_tables import DEVICE_TABLES, EVENT_TABLES, META, REQUIRED, STRINGS
from specanalyze.formats.trace_files import write_trace
from specschema import metadata

CASES: Final = Path(__file__).resolve().parents[1] / "cases"
_COMMANDS: Final = (
    ["breakdown"],
    ["breakdown", "--json"],
    ["breakdown", "--salvage"],
    ["phases"],
    ["validate"],
    ["env"],
    ["accept"],
    ["layers"],
    ["kernels"],
    ["ranks"],
    ["overhead"],
    ["diagnose"],
)

Target = Callable[[bytes, Path], list[str]]


@cache
def documents() -> list[Any]:
    """Traces of the cases that are JSON."""
    found = []
    for path in sorted(CASES.glob("*/*.json")):
        if path.name != "expected.json":
            try:
                found.append(json.loads(path.read_bytes()))
            except ValueError:
                continue
    return found


@cache
def plain_trace() -> Any:
    return json.loads((CASES / "01-graph-replay-one-correlation" / "trace.json").read_bytes())


def _command(dice: Dice) -> list[str]:
    return list(_COMMANDS[0] if dice.one_in(2) else dice.pick(_COMMANDS))


def _damaged(data: bytearray, dice: Dice) -> bytes:
    """A file with some bytes changed, left out or repeated, or its end cut off."""
    for _ in range(1 + dice.below(6)):
        at = dice.below(max(1, len(data)))
        match dice.below(5):
            case 0:
                data[at : at + 1] = bytes([dice.below(256)])
            case 1:
                del data[at : at + 1 + dice.below(64)]
            case 2:
                data[at:at] = data[at : at + 1 + dice.below(256)]
            case 3:
                data[at : at + 4] = dice.pick(
                    (b"\0\0\0\0", b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b"\x80\x80\x80\x80")
                )
            case _:
                if dice.one_in(3):
                    del data[at:]
    return bytes(data)


def kineto_bytes(data: bytes, folder: Path) -> list[str]:
    """Any text, plain or compressed."""
    dice = Dice(data)
    command = _command(dice)
    form = dice.below(3)
    content = dice.rest()
    path = folder / ("trace.json" if form == 0 else "trace.json.gz")
    path.write_bytes(gzip.compress(content, 1) if form == 1 else content)
    return [*command, str(path)]


def kineto_tree(data: bytes, folder: Path) -> list[str]:
    """A trace of the cases with values of the wrong shape; perhaps damaged or compressed as well."""
    dice = Dice(data)
    command = _command(dice)
    content = text(changed(dice.pick(documents()), dice)).encode("utf-8", "surrogatepass")
    if dice.one_in(4):
        content = _damaged(bytearray(content), dice)
    if dice.one_in(4):
        content = gzip.compress(content, 1)
        if dice.one_in(2):
            content = _damaged(bytearray(content), dice)
    path = folder / "trace.json"
    path.write_bytes(content)
    return [*command, str(path)]


_TYPES: Final[tuple[Any, ...]] = (
    pa.int8(),
    pa.int32(),
    pa.int64(),
    pa.uint64(),
    pa.float64(),
    pa.bool_(),
    pa.string(),
    pa.binary(),
    pa.timestamp("ns"),
    pa.list_(pa.int32()),
    pa.list_(pa.string()),
    pa.list_(pa.list_(pa.int64())),
    pa.struct([("a", pa.int64())]),
    pa.dictionary(pa.int32(), pa.string()),
    pa.decimal128(38, 5),
    pa.null(),
)
_CELLS: Final[tuple[Any, ...]] = (
    None,
    0,
    -1,
    1,
    2**31,
    2**63 - 1,
    -(2**63),
    1.5,
    float("nan"),
    True,
    "",
    "kernel",
    "phase",
    "cycle",
    "nonsense",
    "spec.verify",
    "\x1b[31m",
    "9" * 5000,
    b"\xff\xfe",
    [1, 2],
    ["a"],
    [[1]],
    [],
    [2**31],
    {"a": 1},
)


def _array(values: list[Any], kind: Any) -> pa.Array:
    """The values as a column of the type, null where it has no such value."""
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError):
        return pa.array([None], kind) if len(values) == 1 else pa.concat_arrays(_array([v], kind) for v in values)


@cache
def _whole(folder: Path) -> tuple[pa.Table, dict[str, Any], bytes]:
    path = folder / "seed.parquet"
    write_trace(open_trace([CASES / "07-cross-rank-wait-custom-allreduce"]), path, force=True)
    content = path.read_bytes()
    path.unlink()
    table = pq.read_table(pa.BufferReader(content))
    keys = pq.read_metadata(pa.BufferReader(content)).metadata  # the footer's, which the table's schema need not have
    return table, metadata.decode(keys, "seed"), content


def parquet(data: bytes, folder: Path) -> list[str]:
    """trace.parquet with columns of other types, cells of other values, metadata of other shapes, or damaged bytes."""
    dice = Dice(data)
    command = _command(dice)
    table, sections, content = _whole(folder.parent)
    path = folder / "trace.parquet"
    if dice.one_in(4):
        path.write_bytes(_damaged(bytearray(content), dice))
        return [*command, str(path)]
    table = table.slice(0, table.num_rows // 2)
    for _ in range(dice.below(5)):
        at = dice.below(table.num_columns)
        name = table.column_names[at]
        match dice.below(4):
            case 0:
                table = table.remove_column(at)
            case 1:
                kind = dice.pick(_TYPES)
                cells = [dice.pick(_CELLS) for _ in range(4)]
                table = table.set_column(at, name, _array((cells * table.num_rows)[: table.num_rows], kind))
            case 2:
                field = table.schema.field(at)
                values = table.column(at).to_pylist()
                for _ in range(1 + dice.below(4)):
                    if values:
                        values[dice.below(len(values))] = dice.pick(_CELLS)
                table = table.set_column(at, name, _array(values, field.type))
            case _:
                kind = dice.pick(_TYPES)
                table = table.append_column(dice.pick((name, "extra", "kind")), pa.nulls(table.num_rows, kind))
    rows = dice.pick((max(1, table.num_rows), 3, 1))
    if sections.get("ranks"):  # half of the rows are those of the first rank
        groups = [0, -(-table.num_rows // rows)]
        sections = {**sections, "ranks": [{**sections["ranks"][0], "row_groups": groups}]}
    keys = metadata.encode({k: v for k, v in sections.items() if k in metadata.SECTIONS})
    for _ in range(dice.below(4)):
        section = dice.pick(tuple(metadata.SECTIONS))
        written = text(changed(sections.get(section), dice)).encode("utf-8", "surrogatepass")
        keys[f"specanalyze.{section}".encode()] = written
    if dice.one_in(8):
        keys[metadata.VERSION_KEY.encode()] = text(dice.pick(VALUES)).encode("utf-8", "surrogatepass")
    if dice.one_in(8):
        keys[b"ARROW:schema"] = dice.pick((b"", b"!!!!", b"A" * 64))
    if dice.one_in(8):
        keys[b"specanalyze.rank"] = dice.pick((b"-1", b"99999999999999", b"\xff", b"9" * 5000))
    pq.write_table(table.replace_schema_metadata(keys), path, row_group_size=rows, store_schema=not dice.one_in(3))
    return [*command, str(path)]


_NSYS_TYPES: Final = ("INTEGER", "TEXT", "REAL", "BLOB", "INTEGER NOT NULL DEFAULT 5", "")
_NSYS_CELLS: Final[tuple[Any, ...]] = (
    0,
    1,
    -1,
    None,
    282574488338432,
    2**63 - 1,
    -(2**63),
    34,
    59,
    60,
    75,
    1.5,
    "",
    "spec.verify",
    "cudaGraphLaunch_v10000",
    "9" * 5000,
    b"\xff",
    "\x1b[31m",
)
_NSYS_COLUMNS: Final = (
    *("start", "end", "globalPid", "globalTid", "correlationId", "deviceId", "streamId", "graphNodeId", "graphId"),
    *("demangledName", "shortName", "nameId", "name", "id", "value", "text", "textId", "domainId", "eventType"),
    *("bytes", "copyKind", "jsonText", "utcEpochNs", "rank", "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"),
)
_NSYS_TABLES: Final = (*EVENT_TABLES, *META, STRINGS, "TARGET_INFO_SESSION_START_TIME", "PROCESSES", "MPI_RANKS", "Odd")


def _nsys_rows(dice: Dice, table: str) -> tuple[list[str], list[list[Any]]]:
    columns = [c for c in _NSYS_COLUMNS if c in REQUIRED.get(table, ()) or not dice.one_in(3)]
    if dice.one_in(20):
        columns = columns[: dice.below(max(1, len(columns)))]
    columns = columns or ["start"]
    wild = dice.one_in(3)
    rows = []
    for row in range(dice.below(6)):
        plain = {
            "start": 100 + row,
            "end": 200 + row,
            "globalPid": 282574488338432,
            "globalTid": 282574488338433,
            "correlationId": row,
        }
        rows.append(
            [dice.pick(_NSYS_CELLS) if wild and dice.one_in(4) else plain.get(c, dice.below(4)) for c in columns]
        )
    return columns, rows


def sqlite(data: bytes, folder: Path) -> list[str]:
    """An export of Nsight Systems with other columns, types and values, views in place of tables, or damaged bytes."""
    dice = Dice(data)
    command = _command(dice)
    path = folder / "report.sqlite"
    path.unlink(missing_ok=True)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = OFF")
    connection.execute(f"PRAGMA page_size = {dice.pick((4096, 512))}")
    for table in _NSYS_TABLES:
        if dice.one_in(6) and table not in DEVICE_TABLES:
            continue
        columns, rows = _nsys_rows(dice, table)
        typed = ", ".join(f'"{c}" {dice.pick(_NSYS_TYPES) if dice.one_in(8) else ""}' for c in columns)
        connection.execute(f'CREATE TABLE "{table}" ({typed})')
        for row in rows:
            connection.execute(f'INSERT OR IGNORE INTO "{table}" VALUES ({", ".join("?" * len(row))})', row)
    if dice.one_in(10):
        connection.execute("CREATE VIEW IF NOT EXISTS NVTX_EVENTS AS SELECT 1")
    connection.commit()
    connection.close()
    if dice.one_in(3):
        path.write_bytes(_damaged(bytearray(path.read_bytes()), dice))
    return [*command, str(path)]


def nsys_parquet(data: bytes, folder: Path) -> list[str]:
    """A folder of an Nsight Systems Parquet export."""
    dice = Dice(data)
    command = _command(dice)
    export = folder / "export"
    export.mkdir(exist_ok=True)
    for old in export.iterdir():
        old.unlink()
    for table in _NSYS_TABLES:
        if dice.one_in(6) and table not in DEVICE_TABLES:
            continue
        columns, rows = _nsys_rows(dice, table)
        arrays = []
        for at in range(len(columns)):
            values = [row[at] for row in rows]
            kind = (
                dice.pick(_TYPES)
                if dice.one_in(8)
                else pa.string()
                if any(isinstance(v, str) for v in values)
                else pa.int64()
            )
            arrays.append(_array(values, kind))
        pq.write_table(pa.table(arrays, names=columns), export / f"{table}.parquet")
        if dice.one_in(12):
            file = export / f"{table}.parquet"
            file.write_bytes(_damaged(bytearray(file.read_bytes()), dice))
    return [*command, str(export)]


_CYCLES: Final[dict[str, Any]] = {
    "results": [[5, 1, 1000, 2000, [2, 1]], [6, 2, 3000, 4000, None], [7, 3, 5000, 6000, [0, None]]],
    "stamps_ns": [["spec.cycle", 1, 1000, 2500], ["spec.verify", 1, 1100, 2000]],
}
_NODES: Final[list[Any]] = [
    {"nodes": 3, "kinds": [0, 1, 0], "scopes": [["model", "M", 0, 3, 0], ["model.mlp", "MLP", 1, 2, 1]]}
]
_STEPS: Final[list[Any]] = [
    {
        "kind": "verify",
        "cycle": 1,
        "rank": 0,
        "request": "r",
        "num_draft": 3,
        "num_accepted_draft": 1,
        "num_committed": 2,
    },
    {"kind": "prefill"},
]
_PHASES: Final[dict[str, Any]] = {"^my verify": "verify", "draft.*": "draft"}


def sidecars(data: bytes, folder: Path) -> list[str]:
    """Cycle log, node map, steps and phase map of other shapes beside a plain trace."""
    dice = Dice(data)
    command = _command(dice)
    (folder / "plain.json").write_text(json.dumps(plain_trace()))

    def written(name: str, document: Any) -> str:
        if isinstance(document, list) and name == "steps.jsonl":
            content = "\n".join(text(changed(step, dice)) for step in document)
        else:
            content = text(changed(document, dice))
        (folder / name).write_bytes(content.encode("utf-8", "surrogatepass"))
        return str(folder / name)

    for name in ("plain.cycles.json", "plain.nodemap.json"):
        (folder / name).unlink(missing_ok=True)
    match dice.below(6):
        case 0:
            return [*command, str(folder / "plain.json"), "--cycles", written("named.cycles.json", _CYCLES)]
        case 1:
            return [*command, str(folder / "plain.json"), "--node-map", written("named.nodemap.json", _NODES)]
        case 2:
            return ["accept", written("steps.jsonl", _STEPS)]
        case 3:
            return ["breakdown", str(folder / "plain.json"), "--phase-map", written("phases.json", _PHASES)]
        case 4:
            written("plain.cycles.json", _CYCLES)
        case _:
            written("plain.nodemap.json", _NODES)
    return [*command, str(folder / "plain.json")]


TARGETS: Final[dict[str, Target]] = {
    "kineto_bytes": kineto_bytes,
    "kineto_tree": kineto_tree,
    "parquet": parquet,
    "sqlite": sqlite,
    "nsys_parquet": nsys_parquet,
    "sidecars": sidecars,
}
