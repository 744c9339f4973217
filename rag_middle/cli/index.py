"""``rag-middle index``: documents made searchable."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from rag_middle.cli import console
from rag_middle.cli import options as opt
from rag_middle.wording import counted

if TYPE_CHECKING:
    from rag_middle.retrieval import Built, Skipped

_SHOWN = 10  # reports of skipped files on a terminal


@opt.command
def index(
    path: Path = typer.Argument(
        ..., help="File or folder: text, Markdown, PDF, HTML, Word, sheets, JSON."
    ),
    *,
    out: Path | None = typer.Option(None, help="Folder for the index. Default: the user's cache."),
    embedder: opt.Embedder = None,
    chunk_size: int | None = typer.Option(
        None, min=1, help="Tokens per chunk. Default: at most 200, or as before."
    ),
    rebuild: opt.Rebuild = False,
    device: str | None = opt.retrieval_flag(None, help="cpu, cuda, cuda:1 ..."),
    threads: opt.Threads = None,
    as_json: opt.Json = False,
) -> None:
    """Index documents, or bring their index up to date.

    Only documents that have changed are embedded again. What could not be read is reported on
    standard error.
    """
    from rag_middle import retrieval

    retrieval.check_exists(path)
    folder = out or retrieval.default_index_folder(path, embedder or retrieval.DEFAULT_EMBEDDER)
    # As `quiet_progress_bars`, without transformers, which an unchanged folder does not need.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    with console.progress_bar("embedding", hidden=as_json) as progress:
        built = retrieval.build_index(
            path,
            folder,
            embedder=retrieval.SentenceTransformerEmbedder(embedder, device=device),
            chunk_size=chunk_size,
            rebuild=rebuild,
            progress=progress,
        )
    if as_json:
        described = {
            "folder": str(folder),
            "embedder": built.index.embedder.name,
            "sources": _sources(built),
            "chunks": len(built.index),
            "changes": None if built.changes is None else built.changes._asdict(),
            "skipped": [skipped._asdict() for skipped in built.skipped],
        }
        console.print_json(described)
        return
    report_skipped(built.skipped)
    console.print_text(summary(built))
    console.print_text(str(folder))


def _sources(built: Built) -> int:
    return len({chunk.metadata["source"] for chunk in built.index.documents})


def summary(built: Built) -> str:
    """What an index holds, and what was done to it, in a line."""
    contents = f"{counted(len(built.index), 'chunk')} of {counted(_sources(built), 'file')}"
    if built.changes is None:
        return f"{contents}, nothing has changed"
    changes = built.changes
    return f"{contents}: {changes.added} added, {changes.kept} kept, {changes.removed} removed"


def report_skipped(skipped: tuple[Skipped, ...]) -> None:
    """Say on standard error what was not indexed, and why."""
    for source in skipped[:_SHOWN]:
        console.warn(f"skipped {source}")
    if len(skipped) > _SHOWN:
        console.warn(f"{len(skipped) - _SHOWN} more were skipped; --json lists them all.")
