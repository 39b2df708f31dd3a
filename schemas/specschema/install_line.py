"""What is missing, and the command that installs it, as it must be typed here."""

from __future__ import annotations

import json
import shlex
import sys
from importlib.metadata import PackageNotFoundError, distribution
from typing import Final
from urllib.parse import unquote, urlsplit

_OURS: Final = ("specanalyze", "speccollect", "specschema")


def missing(error: ModuleNotFoundError, extra: str) -> str | None:
    """``polars is not installed; run: pip install ...``; None for a module of our own or of Python itself, whose lack is no user's fault.

    Args:
        error: what an import raised.
        extra: the extra of this package that brings it.
    """
    package = (error.name or "").partition(".")[0]
    if not package or package in _OURS or package in sys.stdlib_module_names:
        return None
    return f"{package} is not installed; run: {install_line(extra)}"


def install_line(extra: str) -> str:
    """``pip install ...`` for an extra of this package: from the clone or the address that it was installed from (PEP 610), by its
    name where it came from an index."""
    try:
        text = distribution("specanalyze").read_text("direct_url.json")
        origin = json.loads(text) if text else {}
    except (PackageNotFoundError, ValueError):
        origin = {}
    address = origin.get("url", "")
    if not address:
        return f'pip install "specanalyze[{extra}]"'
    if not address.startswith("file:"):
        return f'pip install "specanalyze[{extra}] @ {address}"'
    folder = unquote(urlsplit(address).path)
    editable = "-e " if origin.get("dir_info", {}).get("editable") else ""
    return f"pip install {editable}{shlex.quote(f'{folder}[{extra}]')}"
