"""The command that installs what is missing, as it must be typed here."""

from __future__ import annotations

import json
import shlex
from importlib.metadata import PackageNotFoundError, distribution
from urllib.parse import unquote, urlsplit


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
