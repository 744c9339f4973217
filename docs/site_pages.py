"""What mkdocs has no option for: pages from outside docs/, notebooks, folders in the navigation.

The site keeps the repository's paths, so a link between two files holds on both. `mkdocs.yml` names
this file among its hooks.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
PUBLISHED = (
    "*.md",
    "LICENSE",
    "docs/**/*.md",
    "docs/**/*.png",
    "docs/site.css",
    "integrations/*/README.md",
    "integrations/llama_index/examples/*.py",
    "integrations/*/LICENSE",
    "examples/*.ipynb",
    "examples/*.py",
    "examples/*/README.md",
    "benchmarks/results/*.md",
)
"""Files of the site, as patterns relative to the repository."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Write out the folders of the navigation."""
    config.nav = [_expanded(entry) for entry in config.nav or []]
    config.watch += [str(ROOT / name) for name in ("README.md", "examples", "rag_middle")]
    return config


def _expanded(entry: Any) -> Any:
    [(title, target)] = entry.items()
    if not (isinstance(target, str) and target.endswith("/")):
        return entry
    pages = [path for path in (ROOT / target).iterdir() if path.suffix in {".md", ".ipynb"}]
    # `index.md` before the others: it becomes the page of the section itself.
    pages.sort(key=lambda path: (path.stem != "index", path.name))
    return {title: [_page_name(path.relative_to(ROOT).as_posix()) for path in pages]}


def _page_name(path: str) -> str:
    """A notebook is a page beside itself; its own name stays for the file to download."""
    return re.sub(r"\.ipynb$", "_notebook.md", path)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replace the files of docs/ by those of the repository that belong to the site."""
    for file in list(files):
        if file.src_dir == config.docs_dir:  # others are the theme's
            files.remove(file)
    for pattern in PUBLISHED:
        for path in sorted(ROOT.glob(pattern)):
            name = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, name, abs_src_path=str(path)))
            if path.suffix == ".ipynb":
                files.append(File.generated(config, _page_name(name), content=_as_markdown(path)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links to notebooks lead to their pages."""
    return re.sub(r"\]\(([^)]+\.ipynb)\)", lambda link: f"]({_page_name(link[1])})", markdown)


def _as_markdown(path: Path) -> str:
    """A notebook with its saved outputs: text, and charts as PNG."""
    parts = []
    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call, unused-ignore]
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        for output in cell.outputs:
            data = output.get("data", {})
            if "image/png" in data:
                image = data["image/png"].replace("\n", "")
                parts.append(f'<img alt="Chart drawn above" src="data:image/png;base64,{image}">')
            else:
                text = output.get("text") or data["text/plain"]
                parts.append(f"```text\n{text.rstrip()}\n```")
    return "\n\n".join(parts)
