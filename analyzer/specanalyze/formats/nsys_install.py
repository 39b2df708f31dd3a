"""An installed Nsight Systems: where it is, and its three programs that are used (nsys export, ImportNvtxt)."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from specschema.errors import TraceError

VARIABLE: Final = "NSYS"
"""Environment variable: the nsys program or the folder of an installation."""

_USUAL: Final = (
    "/opt/nvidia/nsight-systems*",
    "/opt/nvidia/nsight-systems*/*",
    "/usr/lib/nsight-systems",
    "/usr/lib/x86_64-linux-gnu/nsight-systems",
    "/usr/local/cuda*/nsight-systems*",
    "/usr/local/cuda*/bin",
)
"""NVIDIA's packages, Debian's package, the CUDA toolkit."""

_BELOW: Final = (
    "",
    "bin",
    "target-linux-*",
    "host-linux-*",
    "*/target-linux-*",
    "*/host-linux-*",
    "usr/lib/nsight-systems/host-linux-*",
    "usr/lib/*/nsight-systems/target-linux-*",
)
"""Where the programs lie below an installation's folder, unpacked packages included."""


@dataclass(frozen=True)
class NsightSystems:
    """What was found.

    Attributes:
        nsys: the command line program.
        importer: ImportNvtxt, which makes a report out of NVTXT; some installations for servers lack it.
    """

    nsys: Path | None
    importer: Path | None

    def export_sqlite(self, report: Path, target: Path) -> None:
        """Turn a report into SQLite.

        Raises:
            TraceError: nsys refused; the message is its own.
        """
        if self.nsys is None:
            raise TraceError(f"{report.name}: {MISSING}")
        done = _run([self.nsys, "export", "-q", "true", "-f", "true", "-t", "sqlite", "-o", target, report])
        if done.returncode != 0 or not target.is_file():
            raise TraceError(f"{report.name}: nsys export failed: {_last_line(done)}")

    def create_report(self, nvtxt: Path, target: Path) -> None:
        """Turn NVTXT into a report that the same or any newer Nsight Systems opens.

        Raises:
            TraceError: the importer refused; the message is its own.
        """
        if self.importer is None:
            raise TraceError(f"{nvtxt.name}: this Nsight Systems has no ImportNvtxt")
        done = _run([self.importer, "--cmd", "create", "-n", nvtxt, "-o", target], libraries=self.importer.parent)
        if done.returncode != 0 or not target.is_file():
            raise TraceError(f"{nvtxt.name}: ImportNvtxt failed: {_last_line(done)}")


MISSING: Final = (
    f"no Nsight Systems is installed here ({VARIABLE}, PATH and the usual folders were looked through); where it is, run "
    "nsys export -t sqlite on the report and give the .sqlite file"
)


def find() -> NsightSystems:
    """Look in ``$NSYS``, then on PATH, then in the usual folders; what is found first counts."""
    nsys = importer = None
    for folder in _folders():
        if nsys is None and _runs(folder / "nsys"):
            nsys = folder / "nsys"
        if importer is None and _runs(folder / "ImportNvtxt"):
            importer = folder / "ImportNvtxt"
    return NsightSystems(nsys, importer)


def _folders() -> Iterator[Path]:
    roots: list[Path] = []
    if told := os.environ.get(VARIABLE):
        roots.append(Path(told).resolve())
    if on_path := shutil.which("nsys"):
        roots += [Path(on_path), Path(on_path).resolve()]
    for pattern in _USUAL:
        roots += sorted(Path("/").glob(pattern.lstrip("/")), reverse=True)
    for root in roots:
        if root.is_file():
            # bin/nsys, target-linux-x64/nsys: the host folder with the importers lies beside the folder
            yield root.parent
            yield from sorted(root.parent.parent.glob("host-linux-*"))
            yield from sorted(root.parent.parent.parent.parent.glob("nsight-systems/host-linux-*"))
        else:
            for below in _BELOW:
                yield from sorted(root.glob(below)) if below else [root]


def _runs(program: Path) -> bool:
    return program.is_file() and os.access(program, os.X_OK)


def _run(command: list[str | Path], libraries: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ)
    if libraries is not None:
        # The importers find their own libraries only this way; unpacked packages keep some one folder further.
        own = [str(libraries), *(str(p) for p in libraries.parents[2].glob("lib/*-linux-gnu"))]
        environment["LD_LIBRARY_PATH"] = ":".join([*own, *filter(None, [environment.get("LD_LIBRARY_PATH")])])
    try:
        return subprocess.run(
            [str(word) for word in command],
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError as error:
        raise TraceError(f"{command[0]} can't be run: {error.strerror or error}") from None


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line.strip() for line in (done.stderr + "\n" + done.stdout).splitlines() if line.strip()]
    return lines[-1][:200] if lines else f"exit status {done.returncode}"
