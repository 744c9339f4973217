"""``rag-middle index``: documents made searchable."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rag_middle.cli.console import (
    JsonOption,
    print_json,
    print_text,
    progress_bar,
    quiet_progress_bars,
    warn,
)
from rag_middle.cli.options import (
    EmbedderOption,
    RebuildOption,
    command,
    loading_options,
    placed,
    refuse_set,
)
from rag_middle.wording import counted

if TYPE_CHECKING:
    from rag_middle.retrieval import Built, Skipped

_SHOWN = 10  # reports of skipped files on a terminal


@command(loading=loading_options)
def index(
    path: Path = typer.Argument(
        ..., help="File or folder: text, Markdown, PDF, HTML, Word, sheets, JSON."
    ),
    *,
    out: Path | None = typer.Option(None, help="Folder for the index. Default: the user's cache."),
    embedder: EmbedderOption = None,
    chunk_size: int | None = typer.Option(
        None, min=1, help="Tokens per chunk. Default: at most 200, or as before."
    ),
    rebuild: RebuildOption = False,
    precompute: str | None = typer.Option(
        None,
        metavar="MODEL",
        help="A model that reads all documents beforehand, for questions under "
        "parallel_context_windows, ape and cacheblend.",
    ),
    loading: dict[str, Any],
    as_json: JsonOption = False,
) -> None:
    """Index documents, or bring their index up to date.

    Only documents that have changed are embedded again. What could not be read is reported on
    standard error.
    """
    from rag_middle.retrieval import (
        DEFAULT_EMBEDDER,
        SentenceTransformerEmbedder,
        build_index,
        check_exists,
        default_index_folder,
    )

    check_exists(path)
    if precompute is None:
        refuse_set(loading, "is about the model of --precompute: name that too.", but="device")
    folder = out or default_index_folder(path, embedder or DEFAULT_EMBEDDER)
    device = placed(loading).get("device")  # an embedder is not spread
    quiet_progress_bars()
    with progress_bar("embedding", hidden=as_json) as progress:
        built = build_index(
            path,
            folder,
            embedder=SentenceTransformerEmbedder(embedder, device=device),
            chunk_size=chunk_size,
            rebuild=rebuild,
            progress=progress,
        )
    read = None if precompute is None else _read_beforehand(built, folder, precompute, loading)
    if as_json:
        described: dict[str, Any] = {
            "folder": str(folder),
            "embedder": built.index.embedder.name,
            "sources": _sources(built),
            "chunks": len(built.index),
            "changes": None if built.changes is None else built.changes._asdict(),
            "skipped": [skipped._asdict() for skipped in built.skipped],
        }
        print_json(described if read is None else {**described, "precomputed": read})
        return
    report_skipped(built.skipped)
    print_text(f"{summary(built)}\n")
    if read is not None:
        print_text(f"{read} documents and texts before them read\n")
    print_text(f"{folder}\n")


def _read_beforehand(built: Built, folder: Path, name: str, loading: dict[str, Any]) -> int:
    from rag_middle.answering import PromptTemplate
    from rag_middle.answering.answerer import precompute, states_folder
    from rag_middle.generation import DocumentCache, RagMiddleModel

    cache = DocumentCache(max_bytes=0, directory=states_folder(folder))
    model = RagMiddleModel.from_pretrained(name, document_cache=cache, **placed(loading))
    return precompute(built.index, model, PromptTemplate.of_model(name))


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
        warn(f"skipped {source}")
    if len(skipped) > _SHOWN:
        warn(f"{len(skipped) - _SHOWN} more were skipped; --json lists them all.")
