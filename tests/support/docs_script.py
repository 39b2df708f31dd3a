"""The script that fills real outputs into the pages, as a module: tests hold the pages with the same code."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]


def render_docs() -> ModuleType:
    """scripts/render_docs.py, loaded once."""
    if "render_docs" in sys.modules:
        return sys.modules["render_docs"]
    folder = ROOT / "scripts"
    sys.path.insert(0, str(folder))
    spec = importlib.util.spec_from_file_location("render_docs", folder / "render_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["render_docs"] = module
    spec.loader.exec_module(module)
    return module
