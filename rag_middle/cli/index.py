"""``rag-middle index``: documents made searchable."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from rag_middle.cli import console
from rag_middle.cli import options as opt
from rag_middle.cli.models import Loading, load, placed, refuse
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
    precompute: str | None = typer.Option(
        None,
        metavar="MODEL",
        help="A model that reads all documents beforehand, for questions under "
        "parallel_context_windows, ape and cacheblend.",
    ),
    loading: Loading,
    as_json: opt.Json = False,
) -> None:
    """Index documents, or bring their index up to date.

    Only documents that have changed are embedded again. What could not be read is reported on
    standard error.
    """
    from rag_middle import retrieval

    retrieval.check_exists(path)
    if precompute is None:
        own = ("device", "threads")  # of the embedder too
        refuse(loading, "is about the model of --precompute: name that too.", but=own)
    folder = out or retrieval.default_index_folder(path, embedder or retrieval.DEFAULT_EMBEDDER)
    device = placed(loading).get("device")  # an embedder is not spread
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
    read = None
    if precompute is not None:
        from rag_middle.answering import PromptTemplate, answerer
        from rag_middle.generation import DocumentCache

        cache = DocumentCache(max_bytes=0, directory=answerer.states_folder(folder))
        reader = load(precompute, loading, document_cache=cache)
        read = answerer.precompute(built.index, reader, PromptTemplate.of_model(precompute))
    if as_json:
        described = {
            "folder": str(folder),
            "embedder": built.index.embedder.name,
            "sources": _sources(built),
            "chunks": len(built.index),
            "changes": None if built.changes is None else built.changes._asdict(),
            "skipped": [skipped._asdict() for skipped in built.skipped],
            "precomputed": read,
        }
        console.print_json(described)
        return
    report_skipped(built.skipped)
    console.print_text(summary(built))
    if read is not None:
        console.print_text(f"{read} documents and texts before them read")
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
