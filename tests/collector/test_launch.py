"""`speccollect run` and the entry points: hooks reach spawned processes, and nothing is loaded that is not wanted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from speccollect import plugin
from speccollect.control.process import host_hash
from speccollect.control.status import RankStatus, write_status
from speccollect.control.word import prepare_folder
from speccollect.launch import BOOTSTRAP, nsys_command, server_environment
from specschema.errors import UsageError

# a server's package of the name that the bootstrap waits for; its own child is spawned as servers spawn their ranks
MAIN = """
import multiprocessing, sys
import logging
logging.basicConfig(level=logging.INFO, format="%(process)d %(name)s %(message)s")
def rank():
    import sglang
    print("child", "speccollect.plugin" in sys.modules, "sitecustomize" in sys.modules, flush=True)
if __name__ == "__main__":
    import hidden_mark
    print("before", "speccollect.plugin" in sys.modules, flush=True)
    import sglang
    print("parent", "speccollect.plugin" in sys.modules, flush=True)
    process = multiprocessing.get_context("spawn").Process(target=rank)
    process.start()
    process.join()
    import os
    print("teardown", os.environ["TEARDOWN_CUPTI"], process.exitcode)
"""


def speccollect(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(cwd), *sys.path]),
        "SPECANALYZE_NATIVE": "0",
        **environment,
    }
    command = [sys.executable, "-m", "speccollect", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=variables, cwd=cwd, timeout=60)


def test_run_hooks_the_server_and_its_spawned_ranks(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(MAIN)
    (tmp_path / "sglang").mkdir()
    (tmp_path / "sglang" / "__init__.py").write_text("")
    (tmp_path / "sitecustomize.py").write_text("import sys, types; sys.modules['hidden_mark'] = types.ModuleType('x')")
    done = speccollect("run", "--dir", str(tmp_path / "folder"), "--", sys.executable, "main.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["before False", "parent True", "child True True", "teardown 1 0"]


def test_command_that_does_not_exist_is_told(tmp_path: Path) -> None:
    done = speccollect("run", "--", "no-such-server", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, "speccollect: no-such-server is not a command on this machine\n")
    done = speccollect("run", cwd=tmp_path)
    assert done.returncode == 2
    assert "needs the server's command" in done.stderr


def test_nothing_is_compiled_for_a_command_that_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from speccollect.cli import app

    compiled: list[bool] = []
    monkeypatch.setattr(app, "_build_once", lambda: compiled.append(True))
    for command in ([], ["--", "no-such-server"]):
        with pytest.raises(UsageError):
            CliRunner().invoke(app.app, ["run", *command], catch_exceptions=False)
    assert not compiled


def test_exit_code_is_the_servers_own(tmp_path: Path) -> None:
    done = speccollect("run", "--", sys.executable, "-c", "import sys; sys.exit(7)", cwd=tmp_path)
    assert done.returncode == 7


def test_environment_of_a_server() -> None:
    variables = server_environment(Path("/run/x"), {"PYTHONPATH": "/mine", "TEARDOWN_CUPTI": "0", "A": "b"})
    assert variables == {
        "PYTHONPATH": f"{BOOTSTRAP}{os.pathsep}/mine",
        "TEARDOWN_CUPTI": "0",
        "A": "b",
        "SPECANALYZE_DIR": "/run/x",
        "SPECANALYZE": "1",
    }


def test_nsys_traces_graphs_node_by_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="nsys is not on PATH"):
        nsys_command(["python"], "out")
    program = tmp_path / "nsys"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    command = nsys_command(["python", "-m", "x"], "out")
    assert command[0] == str(program)
    assert "--cuda-graph-trace=node" in command
    assert command[-4:] == ["--output=out", "python", "-m", "x"]


@pytest.mark.parametrize(
    "environment", [{}, {"SPECANALYZE": "0", "SPECANALYZE_DIR": "/tmp/x"}], ids=["not asked for", "switched off"]
)
def test_installed_plugin_does_nothing_unless_switched_on(environment: dict[str, str]) -> None:
    code = "import sys; from speccollect.plugin import *; install_sglang(); install_vllm(); "
    code += (
        "print(sorted(m for m in sys.modules if m.startswith(('speccollect', 'pyarrow', 'torch', 'wrapt', 'numpy'))))"
    )
    variables = {"PYTHONPATH": os.pathsep.join(sys.path), "PATH": "/usr/bin:/bin", **environment}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=variables, timeout=60)
    loaded = "['speccollect', 'speccollect.config', 'speccollect.plugin']"
    assert done.stdout.strip() == loaded, done.stderr


def test_broken_hooks_do_not_reach_the_server(tmp_path: Path) -> None:
    code = "import speccollect.engines.sglang as s; "
    code += "s.install = lambda recorder: 1 / 0\n"
    code += "import os; from speccollect import plugin; plugin.install_sglang(); plugin.install_sglang(); "
    code += "print('on', os.environ['TEARDOWN_CUPTI'])"
    variables = {"PYTHONPATH": os.pathsep.join(sys.path), "PATH": "/usr/bin:/bin", "SPECANALYZE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=variables, timeout=60)
    assert done.stdout.strip() == "on 1"
    assert "could not hook sglang; the server is not affected" in done.stderr


@pytest.mark.parametrize("broken", [False, True], ids=["whole", "broken"])
def test_captures_are_watched_from_the_start(tmp_path: Path, broken: bool) -> None:
    """Servers capture their graphs long before anything is armed. A node map that can't be had is said."""
    code = "import sys; sys.modules['speccollect.nodemap.capture'] = None\n"
    code = code * broken + "from speccollect import plugin; plugin.install_vllm(); plugin.install_vllm()\n"
    code += "import torch; print(type(vars(torch.cuda.graphs.CUDAGraph)['capture_begin']).__name__)"
    variables = {"PYTHONPATH": os.pathsep.join(sys.path), "PATH": "/usr/bin:/bin", "SPECANALYZE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=variables, timeout=60)
    assert done.stdout.strip() == ("function" if broken else "FunctionWrapper"), done.stderr
    assert done.stderr.count("could not install the node map; the server is not affected") == int(broken)


def test_entry_points_are_the_ones_servers_look_for() -> None:
    from importlib.metadata import entry_points

    for group, function in (
        ("sglang.srt.plugins", plugin.install_sglang),
        ("vllm.general_plugins", plugin.install_vllm),
    ):
        (point,) = (p for p in entry_points(group=group) if p.name == "speccollect")
        assert point.load() is function


def test_help_loads_nothing_heavy() -> None:
    code = "import sys; sys.argv = ['speccollect', '--help']\n"
    code += "from speccollect.__main__ import main\n"
    code += "try: main()\nexcept SystemExit: pass\n"
    code += "print(sorted({'torch', 'pyarrow', 'numpy', 'polars', 'nvtx'} & set(sys.modules)))"
    variables = {"PYTHONPATH": os.pathsep.join(sys.path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=variables, timeout=60)
    assert done.stdout.strip().splitlines()[-1] == "[]", done.stderr
    for command in ("run", "request", "status", "arm", "disarm", "merge", "demo"):
        assert f" {command} " in done.stdout


@pytest.mark.parametrize(
    ("pid", "code", "words"),
    [(os.getpid(), 0, ""), (2**22 - 1, 1, "have gone (rank 0 was process 4194303)")],
    ids=["alive", "gone"],  # the same in each worker that collects the tests
)
def test_arm_tells_whether_anybody_hears_it(tmp_path: Path, pid: int, code: int, words: str) -> None:
    folder = prepare_folder(tmp_path / "folder").parent
    write_status(folder, RankStatus(rank=0, pid=pid, host=host_hash()))
    armed = speccollect("arm", "--dir", str(folder), "--windows", "off", cwd=tmp_path)
    assert (armed.returncode, bool(armed.stderr)) == (code, bool(words))
    assert words in armed.stderr


def test_arm_status_disarm_merge_by_hand(tmp_path: Path) -> None:
    folder = str(tmp_path / "folder")
    armed = speccollect("arm", "--dir", folder, "--windows", "off", cwd=tmp_path)
    assert armed.stdout == f"recording 1 is armed in {folder}; end it with: speccollect disarm --dir {folder}\n"
    assert armed.returncode == 1
    assert armed.stderr.count("\n") == 1
    assert armed.stderr.startswith(f"speccollect: no rank has announced itself in {folder}, so nothing is recorded yet")
    assert (
        f"start the server with SPECANALYZE_DIR={folder}, or with speccollect run --dir {folder} -- COMMAND"
        in armed.stderr
    )
    twice = speccollect("arm", "--dir", folder, cwd=tmp_path)
    assert twice.returncode == 1
    assert "already recording (number 1)" in twice.stderr
    status = speccollect("status", "--dir", folder, cwd=tmp_path)
    assert "recording 1 is armed" in status.stdout
    assert "no rank has announced itself" in status.stdout
    assert "recording 1 has ended" in speccollect("disarm", "--dir", folder, cwd=tmp_path).stdout
    merged = speccollect("merge", "--dir", folder, "-o", "t.parquet", cwd=tmp_path)
    assert merged.returncode == 1
    assert "no rank has written a file" in merged.stderr
    wrong = speccollect("arm", "--dir", folder, "--windows", "recrod=3", cwd=tmp_path)
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
