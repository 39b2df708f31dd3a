"""Changes the attribution engine one small place at a time, and looks whether a test falls.

    python tests/mutation/run.py OUTPUT [MODULE ...] [--tests NAME ...] [--seconds S] [--again]

One process collects the tests once. Which lines each test runs is recorded first. Then every mutant gets a forked process, in which the
module's functions take the code of the mutant, and the tests that run the changed statement follow, the fastest first, until one fails.
Properties are tried with few examples first, and with all of them where nothing else noticed. Outcomes are kept in OUTPUT, a line of
JSON a mutant; a run that is started again goes on where it stopped. With --again only the survivors are tried anew.

What survives needs a test, or a reason in survivors.md: the run ends with 1 where one has neither.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import math
import os
import resource
import select
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, Final

# A process that has started threads can't be forked safely; one thread each is enough for small inputs.
os.environ.update(dict.fromkeys(("POLARS_MAX_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))

import pytest
from places import Mutant, mutants
from survivors import reasons

ROOT: Final = Path(__file__).resolve().parents[2]
ATTRIBUTION: Final = (
    *(
        "waits",
        "wait_table",
        "wait_warnings",
        "clock_offsets",
        "replay_numbers",
        "instances",
        "captured_nodes",
        "replay_fit",
        "replay_lanes",
        "replay_nodes",
        "executable_graphs",
        "carry_nodes",
        "cycles",
        "ranges",
        "activities",
        "partition",
    ),
    *("compact_nodes", "compact_window", "compact_talk"),
    *("collective_match", "rank_result", "window_work", "window_marks", "host_rows"),
)
ANSWERS: Final = (
    *("accept", "positions", "calibration", "uneven_kernels"),
    *("control", "cycle_growth", "breakeven_along", "device_growth"),
)
MODULES: Final = {
    "intervals": "specanalyze.intervals",
    "collectives": "specanalyze.collectives",
    "compact_rank": "specanalyze.formats.compact_rank",
    "rank_collector": "specanalyze.formats.rank_collector",
    **{name: f"specanalyze.attribution.{name}" for name in ATTRIBUTION},
    **{name: f"specanalyze.answers.{name}" for name in ANSWERS},
    **{name: f"speccollect.cycles.{name}" for name in ("segment", "recording", "lost")},
}
"""Partition, join, waiting and transfer, accept lengths, what they stand on and what compares them, and the collector's hot path."""
TESTS: Final = (
    *("accept", "positions", "waits", "wait_table", "wait_warnings", "clock_offsets", "replay_numbers", "intervals"),
    *("instances", "replay_nodes", "cycles", "calibration", "partition", "ranges", "activities", "cases", "steps"),
    *("ranks_report", "phases_report", "overhead", "sidecars", "load", "nsys_report", "reference_traces", "measured"),
    *("breakeven", "rank_collector", "compact_window", "compact_talk", "compact_nodes", "placed_rows", "compact_rank"),
    *("executable_graphs", "replay_lanes", "graph_ids_in_json", "window_work", "uneven_kernels", "control"),
    *("cycle_growth", "breakeven_along", "device_growth"),
    *("collector/cycles/test_segment.py", "collector/cycles/test_recording.py", "collector/rank/test_recorder.py"),
)
FEW: Final = 25
"""Examples of a property in the first round."""
CPU_S: Final = 30
"""CPU seconds of a mutant beyond ten times what its tests take without a change: then it runs for ever."""
WALL_S: Final = 600
_SETTINGS: Final[dict[str, Any]] = {}
"""What each property asked for itself."""


class Forks:
    """The plugin that runs instead of pytest's loop over the tests."""

    def __init__(self, output: Path, chosen: list[Mutant], most_s: float) -> None:
        self.output = output
        self.chosen = chosen
        self.most_s = most_s
        self.kills: dict[str, int] = {}
        self.failed = ""
        self.items: dict[str, pytest.Item] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed = self.failed or report.nodeid

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if Path("/proc/self/task").exists() and any(name.startswith("polars-0") for name in _threads()):
            sys.exit(
                "a test file computes with polars while it is collected: a forked process would wait for ever for polars' threads"
            )
        self.items = {item.nodeid: item for item in session.items}
        covered = self._coverage()
        done = {json.dumps(row["mutant"]) for row in _rows(self.output)}
        left = [m for m in self.chosen if json.dumps(asdict(m), default=list) not in done]
        for number, mutant in enumerate(left, 1):
            row = self._tried(mutant, covered)
            with self.output.open("a") as file:
                file.write(json.dumps({"mutant": asdict(mutant), **row}) + "\n")
            _say(
                f"{number}/{len(left)} {row['outcome']:9} {row['seconds']:5.1f} s  {shown(mutant)}  {row.get('by', '')}"
            )
        return True

    def _run(self, names: Iterable[str], examples: int | None) -> None:
        """Run tests until one fails (in a fork)."""
        items = [self.items[name] for name in names]
        for item, after in zip(items, [*items[1:], None], strict=False):
            _limit_examples(item, examples)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            if self.failed:
                return

    def _coverage(self) -> dict[str, dict[str, Any]]:
        """Test -> seconds and, by module, the lines that it runs; kept beside the outcomes."""
        kept = self.output.with_suffix(".coverage.json")
        files = {name: str(Path(str(importlib.import_module(name).__file__))) for name in MODULES.values()}
        stamp = sorted(
            (str(p), p.stat().st_mtime_ns) for p in [*map(Path, files.values()), *{i.path for i in self.items.values()}]
        )
        if kept.exists():
            found = json.loads(kept.read_text())
            if found["stamp"] == [list(pair) for pair in stamp]:
                return dict(found["tests"])
        by_file = {path: name for name, path in files.items()}
        tests: dict[str, dict[str, Any]] = {}
        for path in dict.fromkeys(item.path for item in self.items.values()):
            names = [name for name, item in self.items.items() if item.path == path]
            told, error = _forked(partial(self._traced, names, by_file), 3600, 3600)
            if told is None:
                sys.exit(f"{path.name}: {error}")
            broken = [name for name, facts in told.items() if facts["failed"]]
            if broken:
                sys.exit(f"these tests fail without any change: {', '.join(broken)}")
            tests.update(told)
            _say(f"{path.name}: {len(told)} tests, {sum(t['seconds'] for t in told.values()):.1f} s")
        kept.write_text(json.dumps({"stamp": stamp, "tests": tests}))
        return tests

    def _traced(self, names: list[str], by_file: dict[str, str]) -> dict[str, Any]:
        lines: dict[str, set[int]] = {}

        def local(frame: types.FrameType, event: str, _: object) -> Any:
            lines.setdefault(by_file[frame.f_code.co_filename], set()).add(frame.f_lineno)
            return local

        def called(frame: types.FrameType, event: str, _: object) -> Any:
            return local(frame, event, None) if frame.f_code.co_filename in by_file else None

        told = {}
        items = [self.items[name] for name in names]
        for item, after in zip(items, [*items[1:], None], strict=False):
            lines.clear()
            self.failed = ""
            _limit_examples(item, FEW)
            threading.settrace(called)
            sys.settrace(called)
            began = time.process_time()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            seconds = time.process_time() - began
            sys.settrace(None)
            threading.settrace(None)
            told[item.nodeid] = {
                "seconds": seconds,
                "failed": bool(self.failed),
                "lines": {module: sorted(at) for module, at in lines.items()},
            }
        return told

    def _tried(self, mutant: Mutant, covered: dict[str, dict[str, Any]]) -> dict[str, Any]:
        began = time.monotonic()
        first, last = mutant.lines
        inside = _in_function(mutant)
        touching = {
            name: facts["seconds"]
            for name, facts in covered.items()
            if mutant.module in facts["lines"]
            and (not inside or any(first <= line <= last for line in facts["lines"][mutant.module]))
        }
        # What has killed before kills again; then the fastest.
        names: list[str] = []
        budget = self.most_s
        for name in sorted(touching, key=lambda name: (-self.kills.get(name, 0), touching[name])):
            budget -= touching[name]
            if budget < 0 and names:
                break
            names.append(name)

        def tried() -> dict[str, str]:
            try:
                _exchange(mutant)
            except Exception as error:  # noqa: BLE001  whatever reading the module raises: it is dead
                return {"by": f"import: {type(error).__name__}"}
            self._run(names, FEW)
            if not self.failed and self.most_s == math.inf:
                self._run([name for name in names if _is_property(self.items[name])], None)
            return {"by": self.failed}

        seconds = sum(touching.values())
        told, error = _forked(tried, CPU_S + int(10 * seconds), WALL_S)
        if told is not None and told["by"] in self.items:
            self.kills[told["by"]] = self.kills.get(told["by"], 0) + 1
        outcome = "uncovered" if not names else error if told is None else "killed" if told["by"] else "survived"
        return {"outcome": outcome, "seconds": round(time.monotonic() - began, 2), **(told or {})}


def _in_function(mutant: Mutant) -> bool:
    """Whether the change runs with a call, and not once with the import."""
    import ast

    tree = ast.parse(_source(mutant.module))
    return any(
        node.body[0].lineno <= mutant.line <= (node.end_lineno or 0)
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    )


@cache
def _source(module: str) -> str:
    """Read once: mutants are places in the text that was loaded, whatever is edited meanwhile."""
    return Path(str(importlib.import_module(module).__file__)).read_text()


def _exchange(mutant: Mutant) -> None:
    """Give the loaded module the mutant's code, wherever its functions and constants have been imported to."""
    module = importlib.import_module(mutant.module)
    changed = types.ModuleType(module.__name__)
    vars(changed).update({k: v for k, v in vars(module).items() if k.startswith("__")})
    # A dataclass looks its module up by name.
    sys.modules[module.__name__] = changed
    try:
        exec(compile(mutant.of(_source(mutant.module)), str(module.__file__), "exec"), vars(changed))
    finally:
        sys.modules[module.__name__] = module
    _exchange_members(vars(module), vars(changed), module.__name__, _everywhere)


def _everywhere(name: str, old: object, new: object) -> None:
    for module in list(sys.modules.values()):
        held = getattr(module, "__dict__", {})
        if held.get(name) is old:
            held[name] = new


def _exchange_members(
    old: dict[str, Any], new: dict[str, Any], module: str, put: Callable[[str, object, object], None]
) -> None:
    for name, was in list(old.items()):
        now = new.get(name)
        if (name.startswith("__") and not callable(was)) or now is None:
            continue
        functions = _functions(was), _functions(now)
        if functions[0] and len(functions[0]) == len(functions[1]):
            for one, other in zip(*functions, strict=True):
                if one.__module__ == module and one.__code__.co_freevars == other.__code__.co_freevars:
                    one.__code__, one.__defaults__, one.__kwdefaults__ = (
                        *(other.__code__, other.__defaults__),
                        other.__kwdefaults__,
                    )
        elif isinstance(was, type) and isinstance(now, type):
            if was.__module__ == module:
                _exchange_members(dict(vars(was)), dict(vars(now)), module, partial(_set, was))
        elif not isinstance(was, types.ModuleType) and not callable(was):
            put(name, was, now)


def _set(owner: type, name: str, _: object, value: object) -> None:
    with contextlib.suppress(AttributeError, TypeError):
        if not name.startswith("_"):
            setattr(owner, name, value)


def _functions(value: object) -> list[types.FunctionType]:
    """The plain functions behind a function, a property, cached ones, a static or class method."""
    if isinstance(value, property):
        return [f for f in (value.fget, value.fset) if isinstance(f, types.FunctionType)]
    if isinstance(value, cached_property):
        value = value.func
    while hasattr(value, "__wrapped__"):
        value = value.__wrapped__
    if isinstance(value, (staticmethod, classmethod)):
        value = value.__func__
    return [value] if isinstance(value, types.FunctionType) else []


def _is_property(item: pytest.Item) -> bool:
    return hasattr(getattr(item, "obj", None), "hypothesis")


def _limit_examples(item: pytest.Item, examples: int | None) -> None:
    """Fewer examples for a property, or all of them, the same ones each time, and no shrinking: only whether it falls counts."""
    from hypothesis import Phase, settings

    test = getattr(item, "obj", None)
    asked = getattr(test, "_hypothesis_internal_use_settings", None)
    if asked is not None:
        asked = _SETTINGS.setdefault(item.nodeid, asked)
        vars(getattr(test, "__func__", test))["_hypothesis_internal_use_settings"] = settings(
            asked,
            max_examples=min(examples or asked.max_examples, asked.max_examples),
            database=None,
            derandomize=True,
            phases=(Phase.explicit, Phase.generate),
        )


def _forked(work: Callable[[], Any], cpu_s: int, wall_s: int) -> tuple[Any, str]:
    """What the work returns in a process of its own, or None and what became of it."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        quiet = os.open(os.devnull, os.O_WRONLY)
        for descriptor in (1, 2):
            os.dup2(quiet, descriptor)
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 5))
        resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
        code = 1
        try:
            content = json.dumps(work()).encode()
            while content:
                content = content[os.write(writing, content) :]
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    content, until = b"", time.monotonic() + wall_s
    while True:
        if not select.select([reading], [], [], max(0.0, until - time.monotonic()))[0]:
            os.kill(child, signal.SIGKILL)
            break
        part = os.read(reading, 1 << 16)
        if not part:
            break
        content += part
    os.close(reading)
    _, status = os.waitpid(child, 0)
    if status == 0:
        return json.loads(content), ""
    stopped = os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL)
    return None, "timeout" if stopped else "crashed"


def _threads() -> list[str]:
    return [(task / "comm").read_text() for task in Path("/proc/self/task").iterdir()]


def _test_file(name: str) -> str:
    return f"tests/{name}" if name.endswith(".py") else f"tests/analyzer/test_{name}.py"


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _say(line: str) -> None:
    sys.__stdout__.write(line + "\n")  # type: ignore[union-attr]
    sys.__stdout__.flush()  # type: ignore[union-attr]


def shown(mutant: Mutant) -> str:
    """``accept:95 is_null -> is_not_null``."""
    return f"{mutant.module.rpartition('.')[2]}:{mutant.line}:{mutant.column} {mutant.was} -> {mutant.now}"


def main() -> int:
    """Run, and count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("modules", nargs="*", metavar="MODULE", help=f"all without; of {', '.join(MODULES)}")
    parser.add_argument(
        "--tests",
        nargs="+",
        default=[],
        metavar="NAME",
        help="of tests/analyzer/test_NAME.py, or a file of tests/ (collector/cycles/test_segment.py); all that hold the engine without",
    )
    parser.add_argument("--again", action="store_true", help="try the survivors of OUTPUT anew")
    parser.add_argument(
        "--seconds",
        type=float,
        default=math.inf,
        help="tests for a mutant at most: a first look, to be followed by --again",
    )
    asked = parser.parse_args()
    if unknown := [name for name in asked.modules if name not in MODULES]:
        parser.error(f"no module to mutate: {', '.join(unknown)}")
    output = asked.output.resolve()
    os.chdir(ROOT)
    modules = [MODULES[name] for name in asked.modules or MODULES]
    chosen = [mutant for name in modules for mutant in mutants(name, _source(name))]
    if asked.again:
        rows = _rows(output)
        output.write_text("".join(json.dumps(r) + "\n" for r in rows if r["outcome"] not in ("survived", "uncovered")))
    tests = [path for path in map(_test_file, asked.tests or TESTS) if asked.tests or Path(path).exists()]
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"--basetemp={output.with_suffix('.tests')}"]
    code = pytest.main([*options, *tests], plugins=[Forks(output, chosen, asked.seconds)])
    if code not in (0, 5):
        return int(code)
    known = {json.dumps(asdict(m), default=list) for m in chosen}
    rows = [row for row in _rows(output) if json.dumps(row["mutant"]) in known]
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["outcome"]] = counts.get(row["outcome"], 0) + 1
    _say(f"{len(rows)} of {len(chosen)} mutants tried: {', '.join(f'{n} {k}' for k, n in sorted(counts.items()))}")
    alive = [
        Mutant(**{**row["mutant"], "lines": tuple(row["mutant"]["lines"])})
        for row in rows
        if row["outcome"] in ("survived", "uncovered")
    ]
    without = [mutant for mutant in alive if not reasons(mutant, _source(mutant.module))]
    for mutant in without:
        _say(f"no test and no reason: {shown(mutant)}")
    return 1 if without or len(rows) < len(chosen) else 0


if __name__ == "__main__":
    sys.exit(main())
