"""Walls between the packages: who may import whom, and what must never be imported."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from specschema.install_line import install_line, missing

ROOT = Path(__file__).resolve().parents[1]


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)


def test_no_stray_packages() -> None:
    """``import collector`` must stay an accident without consequences: an __init__.py would make it a package."""
    assert [str(p) for part in ("collector", "analyzer", "schemas") for p in (ROOT / part).glob("__init__.py")] == []


def test_layers_hold() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def modules(package: str) -> str:
    return f"""
import importlib, pkgutil, {package}
for found in pkgutil.walk_packages({package}.__path__, {package!r} + "."):
    if not found.name.endswith("__main__"):
        importlib.import_module(found.name)
"""


def test_the_analyzer_never_imports_torch() -> None:
    block = "import sys; sys.modules['torch'] = None; sys.modules['nvtx'] = None; sys.modules['speccollect'] = None\n"
    done = python(block + modules("specanalyze"))
    assert done.returncode == 0, done.stderr


def test_the_schemas_need_pyarrow_alone() -> None:
    block = "import sys\nfor name in ('torch', 'polars', 'numpy', 'typer', 'rich'): sys.modules[name] = None\n"
    done = python(block + modules("specschema"))
    assert done.returncode == 0, done.stderr


def test_a_server_never_loads_the_command_line() -> None:
    code = """
import sys
for name in ("polars", "typer", "rich", "specanalyze"):
    sys.modules[name] = None
import speccollect.plugin, speccollect.rank.recorder, speccollect.windows.window, speccollect.hooks.points
speccollect.plugin.install_sglang()
speccollect.plugin.install_vllm()
"""
    done = python(code)
    assert done.returncode == 0, done.stderr


def test_nothing_in_a_server_reaches_the_command_line() -> None:
    """Imports inside functions count, too."""
    found = []
    package = ROOT / "collector" / "speccollect"
    for path in sorted(package.rglob("*.py")):
        if path.parent.name == "cli" or path.name == "__main__.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            reached = [n for n in names if re.match(r"(?:typer|rich|click|speccollect\.cli)(?:\.|$)", n)]
            found += [f"{path.relative_to(package)}: {name}" for name in reached]
    assert found == []


@pytest.mark.parametrize("command", ["specanalyze", "speccollect"])
def test_help_is_quick(command: str) -> None:
    """--help imports neither polars nor pyarrow nor torch."""
    code = f"""
import sys
for name in ("polars", "pyarrow", "torch", "numpy"):
    sys.modules[name] = None
sys.argv = [{command!r}, "--help"]
from {command}.__main__ import main
main()
"""
    done = python(code)
    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout


def test_the_demo_names_torch_where_it_is_missing(tmp_path: Path) -> None:
    trace = tmp_path / "trace.parquet"
    code = f"""
import sys
sys.modules["torch"] = None
sys.argv = ["speccollect", "demo", "-o", {str(trace)!r}]
from speccollect.__main__ import main
main()
"""
    done = python(code)
    assert done.returncode == 1
    assert done.stderr.strip() == f"speccollect: torch is not installed; run: {install_line('collector')}"
    assert not trace.exists()


def test_the_demo_complains_of_the_output_before_torch(tmp_path: Path) -> None:
    code = """
import sys
sys.modules["torch"] = None
sys.argv = ["speccollect", "demo", *sys.argv[1:]]
from speccollect.__main__ import main
main()
"""
    for words, said in ((["-o", "nowhere/t.parquet"], "no folder nowhere"), (["--windows", "zzz=1"], "'zzz' is not a")):
        done = subprocess.run(
            [sys.executable, "-c", code, *words], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr.count("\n"), said in done.stderr) == (2, 1, True), done.stderr


SAMPLE = Path(__file__).parents[1] / "samples" / "embedded_tp2.parquet"


@pytest.mark.parametrize("package", ["polars", "numpy", "pyarrow", "rich", "msgspec"])
def test_what_a_command_of_the_analyzer_lacks_is_named(package: str) -> None:
    """Beside a server the collector alone is installed: a breakdown there ended in a traceback."""
    code = f"""
import sys
sys.modules[{package!r}] = None
sys.argv = ["specanalyze", "breakdown", {str(SAMPLE)!r}]
from specanalyze.__main__ import main
main()
"""
    done = python(code)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"error: {package} is not installed; run: {install_line('analyzer')}\n"


@pytest.mark.parametrize("name", ["specanalyze.answers", "specschema.phases", "sqlite3", "_lzma", None])
def test_a_module_of_ours_or_of_python_is_no_users_fault(name: str | None) -> None:
    assert missing(ModuleNotFoundError("gone", name=name), "analyzer") is None


def test_missing_dependencies_are_named() -> None:
    code = "import sys; sys.modules['typer'] = None\nfrom specanalyze.__main__ import main\nmain()"
    done = python(code)
    assert done.returncode == 1
    assert done.stderr.strip() == f"error: typer is not installed; run: {install_line('analyzer')}"
