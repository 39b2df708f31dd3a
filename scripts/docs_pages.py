"""mkdocs hook: pages that live beside the code, not in docs/, join the site, and links between both find their way.

The repository keeps one README a folder, readable where the code is. The site shows the same files.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "LICENSE": "license.md",
    "analyzer/README.md": "analyzer.md",
    "collector/README.md": "collector.md",
    "samples/README.md": "samples.md",
    "samples/look_at_a_trace.ipynb": "look_at_a_trace.ipynb",
    "schemas/README.md": "schemas.md",
}
"""Path in the repository -> page of the site."""
DECLARATION = re.compile(r"`([^`\n]*<!\[[^`\n]*)`")
"""Inline code that holds ``<![`` (a regular expression's lookbehind): Python's HTML parser takes it for a declaration and fails."""
LINK = re.compile(r"(?P<before>\]\()(?P<target>[^)#\s:]+)(?P<anchor>#[^)\s]*)?(?P<after>\))")

WHOLE_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]\[]*)\]\((?P<target>[^)#\s:]+)(?:#[^)\s]*)?\)")
"""A link to a file of the repository that is no page of the site becomes the file's name: there is nothing to lead to."""


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that lie outside docs/."""
    for source, page in OUTSIDE.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(
            File.generated(config, page, content=text if source != "LICENSE" else f"# Licence\n\n```text\n{text}```\n")
        )
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Turn links that hold in the repository into links that hold in the site."""
    home = {site: source for source, site in OUTSIDE.items()}.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def turn(found: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(home), found["target"]))
        inside = OUTSIDE.get(path, path.removeprefix("docs/") if path.startswith("docs/") else None)
        if inside is None:
            return found[0]
        return f"{found['before']}{inside}{found['anchor'] or ''}{found['after']}"

    def name(found: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(home), found["target"]))
        if path in OUTSIDE or path.startswith("docs/") or not (ROOT / path).exists():
            return found[0]
        told = found["text"].strip("`").endswith(posixpath.basename(path))
        return found["text"] if told else f"{found['text']} (`{path}`)"

    return LINK.sub(turn, WHOLE_LINK.sub(name, DECLARATION.sub(_entities, markdown)))


def _entities(found: re.Match[str]) -> str:
    """The same inline code, with every sign that Markdown or HTML could read as an entity."""
    text = found[1].replace("\\|", "|")
    return "<code>" + "".join(c if c.isalnum() or c == " " else f"&#{ord(c)};" for c in text) + "</code>"
