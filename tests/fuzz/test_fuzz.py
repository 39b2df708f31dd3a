"""A bounded run of the fuzzers: the scanner by itself under sanitizers, then each importer for some hundred inputs."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

FOLDER: Final = Path(__file__).resolve().parent
CASES: Final = FOLDER.parent / "cases"
TARGETS: Final = ("kineto_bytes", "kineto_tree", "parquet", "sqlite", "nsys_parquet", "sidecars")
SECONDS: Final = int(os.environ.get("SPECANALYZE_FUZZ_SECONDS", "10"))
"""Time of each run; hours are asked for by hand."""


def seeds(folder: Path, target: str) -> Path:
    """Inputs to start from: random choices, and for plain text the cases behind the bytes that choose command and form."""
    folder.mkdir()
    dice = random.Random(target)
    for number in range(16):
        (folder / f"choices-{number}").write_bytes(dice.randbytes(300))
    if target == "kineto_bytes":
        for number, path in enumerate(sorted(CASES.glob("*/*.json"))):
            (folder / f"case-{number}").write_bytes(b"\1\0" + path.read_bytes()[:20_000])
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_no_input_breaks_the_promise(target: str, tmp_path: Path) -> None:
    if importlib.util.find_spec("atheris") is None:
        pytest.skip("atheris is not installed, so nothing was fuzzed: pip install atheris")
    corpus = seeds(tmp_path / "corpus", target)
    command = [
        sys.executable,
        str(FOLDER / "fuzz.py"),
        target,
        str(corpus),
        f"-max_total_time={SECONDS}",
        "-timeout=60",
        "-len_control=0",
        "-max_len=20000",
    ]
    done = subprocess.run(
        # By way of a shell: a process begins with the largest resident set of the one that started it, which libFuzzer takes for its own.
        ["sh", "-c", '"$@"; exit $?', "sh", *command],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=120 + 10 * SECONDS,
        check=False,
        env={**os.environ, "RUST_BACKTRACE": "0"},
    )
    found = sorted(path.name for path in tmp_path.glob("*-*") if path.is_file())
    assert done.returncode == 0, f"{found}: {done.stderr[-3000:]}"


@pytest.mark.slow
def test_the_scanner_keeps_its_memory_and_its_promises(tmp_path: Path) -> None:
    compiler = shutil.which(os.environ.get("CC") or "cc")
    if compiler is None:
        pytest.skip("no C compiler, so the scanner was not fuzzed")
    fuzzer = tmp_path / "scan_fuzz"
    flags = [
        "-g",
        "-O1",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
        "-fsanitize-coverage=trace-pc",
        "-DOWN_DRIVER",
    ]
    built = subprocess.run(
        [compiler, *flags, str(FOLDER / "kineto_scan_fuzz.c"), "-o", str(fuzzer)],
        capture_output=True,
        text=True,
        check=False,
    )
    if built.returncode:
        pytest.skip(f"this compiler has no sanitizers, so the scanner was not fuzzed: {built.stderr.splitlines()[:1]}")
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for path in sorted(CASES.glob("*/*.json")):
        try:
            rows = json.loads(path.read_bytes())
        except ValueError:
            continue
        rows = rows.get("traceEvents") if isinstance(rows, dict) else rows
        if isinstance(rows, list):
            for at in range(0, len(rows), 4):
                (corpus / f"{path.parent.name}-{path.stem}-{at}").write_text(json.dumps(rows[at : at + 4]))
    done = subprocess.run(
        [str(fuzzer), str(corpus), str(SECONDS)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120 + 10 * SECONDS,
        env={**os.environ, "ASAN_OPTIONS": "max_malloc_fill_size=1000000000:malloc_fill_byte=190"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "nothing found" in done.stdout


@pytest.mark.slow
def test_the_compiled_passes_keep_their_memory(tmp_path: Path) -> None:
    """Whole commands with every helper compiled for sanitizers: bounds, use after free, overflow of signed numbers."""
    compiler = shutil.which("gcc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("no gcc, so the compiled passes were not run under sanitizers")
    runtimes = [
        subprocess.run(
            [compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    if not all(Path(path).is_absolute() for path in runtimes):
        pytest.skip("this compiler has no sanitizers, so the compiled passes were not run under them")
    wrapper = tmp_path / "cc"
    flags = "-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined"
    wrapper.write_text(f'#!/bin/sh\nexec {compiler} "$@" {flags}\n')
    wrapper.chmod(0o700)
    done = subprocess.run(
        [sys.executable, str(FOLDER / "random_inputs.py"), str(SECONDS), "1"],
        capture_output=True,
        text=True,
        check=False,
        timeout=300 + 20 * SECONDS,
        env={
            **os.environ,
            "CC": str(wrapper),
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
            "LD_PRELOAD": " ".join(runtimes),
            "ASAN_OPTIONS": "detect_leaks=0",
            "PYTHONMALLOC": "malloc",
            "POLARS_MAX_THREADS": "1",
        },
    )
    assert done.returncode == 0, (done.stderr + done.stdout)[-3000:]
    assert "nothing found" in done.stdout
