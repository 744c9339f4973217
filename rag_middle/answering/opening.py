"""From what a caller names to an index and a model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from rag_middle.errors import RetrievalConfigError
from rag_middle.generation.loading import load_tokenizer
from rag_middle.retrieval import (
    Built,
    Embedder,
    FaissIndex,
    SentenceTransformerEmbedder,
    build_index,
    default_index_folder,
    saved_settings,
)
from rag_middle.retrieval.manifest import is_index_folder

__all__ = ["model_folder", "opened_index", "tokenizer_of"]


def model_folder(model: str | Path | None) -> str | Path:
    """`model`, or the folder of the bundled reader.

    Raises:
        ModelNotFoundError: this installation has no bundled reader.
    """
    if model is not None:
        return model
    from rag_middle.reader import reader_path

    return reader_path()


def tokenizer_of(model: str | Path, loading: dict[str, Any]) -> PreTrainedTokenizerBase:
    """The tokenizer of a model, which costs little, before its weights, which may cost much.

    Args:
        model: a directory, or a name on the hub.
        loading: arguments of ``RagMiddleModel.from_pretrained``.

    Raises:
        ModelNotFoundError: neither here nor to be fetched.
    """
    given = loading.get("tokenizer")
    if isinstance(given, PreTrainedTokenizerBase):
        return given
    return load_tokenizer(
        model if given is None else given,
        revision=loading.get("revision") if given is None else None,
        trust_remote_code=loading.get("trust_remote_code", False),
        options=loading.get("tokenizer_options") or {},
    )


def opened_index(
    path: str | Path,
    *,
    embedder: Embedder | str | Path | None,
    folder: str | Path | None,
    rebuild: bool,
    device: str | None,
    on_index: Callable[[Built], None] | None,
    **settings: Any,
) -> FaissIndex:
    """An index of the documents at `path`, or the saved index that `path` is.

    Args:
        path: documents, or the folder of a saved index.
        embedder: an embedder, or the name of one.
        folder: where the index is kept; by default in the user's cache.
        rebuild: replace what is there.
        device: of the embedder, where it is given by name.
        on_index: called with what was done, where documents were indexed.
        settings: arguments of `build_index`; those not given are as in the saved index.
    """
    model: Embedder
    if embedder is None or isinstance(embedder, str | Path):
        model = SentenceTransformerEmbedder(embedder, device=device)
    else:
        model = embedder
    if is_index_folder(Path(path)):
        if rebuild:
            raise RetrievalConfigError(
                f"{str(path)!r} is a saved index, which cannot be rebuilt without its documents: "
                "name their folder (--docs), and that of the index beside it (--index)."
            )
        return FaissIndex.load(path, model)
    kept = default_index_folder(path, embedder=model.name) if folder is None else folder
    as_saved = saved_settings(kept, model)
    built = build_index(path, kept, embedder=model, rebuild=rebuild, **{**as_saved, **settings})
    if on_index is not None:
        on_index(built)
    return built.index
