"""Open an index and a tokenizer by what the caller named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from rag_middle.errors import ConfigError
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
from rag_middle.retrieval.readers import is_index_folder


def open_tokenizer(model: str | Path, loading: dict[str, Any]) -> PreTrainedTokenizerBase:
    """The tokenizer of a model.

    Args:
        loading: arguments of ``RagMiddleModel.from_pretrained``.

    Raises:
        ModelNotFoundError: neither here nor to be fetched.
    """
    tokenizer = loading.get("tokenizer")
    if isinstance(tokenizer, PreTrainedTokenizerBase):
        return tokenizer
    of_model = loading.get("model_options") or {}
    gguf_file = loading.get("gguf_file") or of_model.get("gguf_file")
    return load_tokenizer(
        model if tokenizer is None else tokenizer,
        revision=loading.get("revision") if tokenizer is None else None,
        trust_remote_code=loading.get("trust_remote_code", False),
        options=loading.get("tokenizer_options") or {},
        gguf_file=gguf_file if tokenizer is None else None,
    )


def open_index(
    path: str | Path,
    *,
    embedder: Embedder | str | Path | None,
    folder: str | Path | None,
    rebuild: bool,
    device: str | None,
    on_index: Callable[[Built], None] | None,
    progress: Callable[[int, int], None] | None = None,
    **settings: int,
) -> FaissIndex:
    """An index of the documents at `path`, or the saved index that `path` is.

    Args:
        path: documents, or the folder of a saved index.
        embedder: an embedder, or the name of one.
        folder: where the index is kept; by default in the user's cache.
        device: of an embedder that is named.
        on_index: called with the result, where documents were indexed.
        progress: of an embedder that is named.
        settings: `max_file_bytes` of `build_index`; by default as in the saved index.
    """
    is_index = is_index_folder(Path(path))
    if is_index and rebuild:
        raise ConfigError(
            f"{str(path)!r} is a saved index, which cannot be rebuilt without its documents: "
            "name their folder (--docs), and that of the index beside it (--index)."
        )
    if embedder is None or isinstance(embedder, str | Path):
        embedder = SentenceTransformerEmbedder(embedder, device=device, progress=progress)
    if is_index:
        index = FaissIndex.load(path, embedder)
    else:
        if folder is None:
            folder = default_index_folder(path, embedder=embedder.name)
        kept: dict[str, Any] = {} if rebuild else saved_settings(folder, embedder)
        built = build_index(
            path, folder, embedder=embedder, rebuild=rebuild, **{**kept, **settings}
        )
        index = built.index
        if on_index is not None:
            on_index(built)
    _ = embedder.dimension  # loads it now, not when the first question is timed
    return index
