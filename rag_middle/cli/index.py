"""``rag-middle index``: documents made searchable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rag_middle.cli.checks import check_output_folder
from rag_middle.cli.console import (
    JsonOption,
    console,
    print_json,
    print_text,
    printable,
    tell,
)
from rag_middle.cli.measuring import embedding_bar
from rag_middle.cli.options import LOADING, command, placed
from rag_middle.wording import counted

if TYPE_CHECKING:
    from rag_middle.retrieval import Built, Skipped, Splitter

_SHOWN = 10  # reports of skipped files on a terminal


@command({"folder": "--out"}, loading=[flag for flag in LOADING if flag.name != "context_window"])
def index(
    path: Annotated[
        Path, typer.Argument(help="File or folder: text, Markdown, PDF, HTML, Word, sheets, JSON.")
    ],
    *,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the index. Default: one in the user's cache."),
    ] = None,
    embedder: Annotated[
        str | None,
        typer.Option(
            help="Folder or hub name of a sentence-transformers model, which is fetched if it is "
            "not here. Default: all-MiniLM-L6-v2, without a network.",
        ),
    ] = None,
    chunk_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Tokens of the embedder per chunk. Default: 200, or three quarters of what it "
            "reads if that is less.",
        ),
    ] = None,
    max_file_mib: Annotated[int, typer.Option(min=1, help="Larger files are skipped.")] = 32,
    rebuild: Annotated[
        bool,
        typer.Option(
            "--rebuild",
            help="Replace the saved index, also if it is damaged or of another embedder.",
        ),
    ] = False,
    precompute: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Also have this model (a folder or hub name) read all documents, so that "
            "questions under parallel_context_windows, ape and cacheblend need not. Kept beside "
            "the index.",
        ),
    ] = None,
    loading: dict[str, Any],
    as_json: JsonOption = False,
) -> None:
    """Index documents, or bring their index up to date.

    Only documents that have changed are embedded again. What could not be read is reported on
    standard error.
    """
    from rag_middle.retrieval import check_exists

    check_exists(path)  # before numpy is loaded, and the embedder
    from rag_middle.retrieval import (
        DEFAULT_EMBEDDER,
        SentenceTransformerEmbedder,
        build_index,
        default_index_folder,
    )

    if out is not None:
        check_output_folder(out)
    name = embedder or DEFAULT_EMBEDDER
    folder = default_index_folder(path, embedder=name) if out is None else out
    if precompute is None:
        _check_unused(loading)
    else:
        _check_model(precompute, loading)
    device = placed(loading).get("device")  # an embedder is not spread
    try:
        with embedding_bar(hidden=as_json) as progress:
            model = SentenceTransformerEmbedder(embedder, device=device, progress=progress)
            built = build_index(
                path,
                folder,
                embedder=model,
                splitter=None if chunk_size is None else _splitter(model.count_tokens, chunk_size),
                rebuild=rebuild,
                max_file_bytes=max_file_mib * 2**20,
            )
    except KeyboardInterrupt:
        _tell_stopped(folder)
        raise
    read = None if precompute is None else _read_beforehand(built, folder, precompute, loading)
    if as_json:
        described = _described(built, folder)
        print_json(described if read is None else {**described, "precomputed": read})
        return
    report_skipped(built.skipped)
    print_text(f"{summary(built)}\n")
    if read is not None:
        print_text(f"{read} documents and texts before them read\n")
    print_text(f"{folder}\n")


def _tell_stopped(folder: Path) -> None:
    from rag_middle.retrieval.readers import is_index_folder

    kept = (
        f"the index in {folder} is as it was before"
        if is_index_folder(folder)
        else "nothing was saved, because an index is saved when it is complete"
    )
    tell("Stopped", "yellow", f"{kept}. The same command starts again.")


def _read_beforehand(built: Built, folder: Path, name: str, loading: dict[str, Any]) -> int:
    from rag_middle.answering import PromptTemplate
    from rag_middle.answering.states import precompute, states_folder
    from rag_middle.generation import DocumentCache, RagMiddleModel

    cache = DocumentCache(max_bytes=0, directory=states_folder(folder))
    model = RagMiddleModel.from_pretrained(name, document_cache=cache, **placed(loading))
    return precompute(built.index, model, PromptTemplate.of_model(name))


def _check_unused(loading: dict[str, Any]) -> None:
    """Refuse what says how to load a model where there is none; an embedder has a device too."""
    for parameter in LOADING:
        value = loading.get(parameter.name)
        if parameter.name != "device" and value not in (None, parameter.default):
            raise typer.BadParameter(
                "it is about the model of --precompute, and says nothing to the embedder: name "
                "that model, or leave this out.",
                param_hint=f"--{parameter.name.replace('_', '-')}",
            )


def _check_model(name: str, loading: dict[str, Any]) -> None:
    """Refuse a model that is not to be had before all documents are embedded."""
    from rag_middle.generation.loading import check_loading, load_tokenizer, loading_errors

    with loading_errors(name):
        check_loading(**placed(loading))
        load_tokenizer(
            name,
            revision=loading.get("revision"),
            trust_remote_code=loading["trust_remote_code"],
            options={},
            gguf_file=loading.get("gguf_file"),
        )


def _splitter(length: Callable[[str], int], chunk_size: int) -> Splitter:
    from rag_middle.retrieval import Splitter

    return Splitter(chunk_size=chunk_size, overlap=chunk_size // 10, length=length, unit="tokens")


def _described(built: Built, folder: Path) -> dict[str, Any]:
    return {
        "folder": str(folder),
        "embedder": built.index.embedder.name,
        "sources": len({chunk.source for chunk in built.index.chunks}),
        "chunks": len(built.index),
        "changes": None if built.changes is None else asdict(built.changes),
        "skipped": [asdict(skipped) for skipped in built.skipped],
    }


def summary(built: Built) -> str:
    """What an index holds, and what was done to it, in a line."""
    sources = len({chunk.source for chunk in built.index.chunks})
    contents = f"{counted(len(built.index), 'chunk')} of {counted(sources, 'file')}"
    if built.changes is None:
        return f"{contents}, nothing has changed"
    changes = built.changes
    return f"{contents}: {changes.added} added, {changes.kept} kept, {changes.removed} removed"


def report_skipped(skipped: tuple[Skipped, ...]) -> None:
    """Say on standard error what was not indexed, and why."""
    from rich.text import Text

    stderr = console(stderr=True)
    for source in skipped[:_SHOWN]:
        # File names may hold anything: with a line end, a line that looks like another message.
        shown = printable(str(source)).replace("\n", "\N{REPLACEMENT CHARACTER}")
        stderr.print(Text.assemble(("Skipped ", "yellow"), shown), soft_wrap=True)
    if len(skipped) > _SHOWN:
        more = f"... and {len(skipped) - _SHOWN} more; --json lists them all."
        stderr.print(Text(more, "yellow"))
