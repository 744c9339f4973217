"""Documents read once and reused across questions.

Where documents do not see each other (`parallel_context_windows`, `ape`), a document's keys and
values depend on the model, on the prefix and on the document itself. A `DocumentCache` keeps them:
in memory up to a number of bytes, and on disk where it is given a folder.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from rag_middle.attention.document_states import (
    DocumentStates,
    can_reuse_documents,
    document_states,
    filled_cache,
)
from rag_middle.errors import UnsupportedGenerationError
from rag_middle.generation.facts import device_of
from rag_middle.generation.notices import warn_caller
from rag_middle.generation.options import check_whole
from rag_middle.generation.turns import in_eval_mode, turn
from rag_middle.methods import Method
from rag_middle.tokens import TokenizedPrompt

__all__ = ["DocumentCache", "precompute", "serves", "with_documents"]

_FORMAT = "rag-middle document states 1"
_SAMPLES = 32  # numbers of each parameter that tell models apart


class DocumentCache:
    """Keys and values of documents, by content.

    One cache may serve several models, prefixes and threads. What is kept in memory lies where it
    was computed (on the GPU, for a model there) and is dropped least recently used first.

    Args:
        max_bytes: memory for states; 0 to keep them on disk only.
        directory: keeps them there too, one safetensors file each, named by content; created when
            needed. Whoever can write there can change what a model reads.

    Raises:
        UnsupportedGenerationError: `max_bytes` is no whole number from 0 on.
    """

    def __init__(self, *, max_bytes: int = 2**30, directory: str | Path | None = None) -> None:
        check_whole("max_bytes", max_bytes, least=0)
        self.max_bytes = max_bytes
        self.directory = None if directory is None else Path(directory).expanduser()
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, DocumentStates] = OrderedDict()
        self._bytes = 0
        self._hits = 0
        self._misses = 0

    @property
    def nbytes(self) -> int:
        """Memory in use."""
        return self._bytes

    @property
    def hits(self) -> int:
        """Pieces (prefixes and documents) that were found so far."""
        return self._hits

    @property
    def misses(self) -> int:
        """Pieces that had to be computed so far."""
        return self._misses

    def __len__(self) -> int:
        """Pieces in memory."""
        return len(self._kept)

    def clear(self) -> None:
        """Forget what is in memory; files stay."""
        with self._lock:
            self._kept.clear()
            self._bytes = 0

    def get(self, key: str, tokens: int, device: torch.device) -> DocumentStates | None:
        """The states under a key, from memory or disk; None where there are none.

        A file that cannot be read, or holds something else, counts as none, with a warning.
        """
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
        if found is None and self.directory is not None:
            found = _read(self._path(key), tokens, device)
            if found is not None:
                self._keep(key, found)
        with self._lock:
            self._hits += found is not None
            self._misses += found is None
        return found

    def put(self, key: str, states: DocumentStates) -> None:
        """Keep states in memory, and on disk where there is a folder."""
        self._keep(key, states)
        if self.directory is not None:
            _write(self._path(key), states)

    def _keep(self, key: str, states: DocumentStates) -> None:
        with self._lock:
            if key in self._kept or states.nbytes > self.max_bytes:
                return
            self._kept[key] = states
            self._bytes += states.nbytes
            while self._bytes > self.max_bytes:
                _, dropped = self._kept.popitem(last=False)
                self._bytes -= dropped.nbytes

    def _path(self, key: str) -> Path:
        assert self.directory is not None
        return self.directory / key[:2] / f"{key}.safetensors"


def serves(cache: DocumentCache | None, model: PreTrainedModel, method: Method) -> bool:
    """Whether documents of this method's requests come from the cache."""
    return cache is not None and method.reads_documents_apart and can_reuse_documents(model)


def with_documents(
    cache: DocumentCache | None,
    model: PreTrainedModel,
    method: Method,
    prompts: Sequence[TokenizedPrompt],
    rows: int = 1,
) -> DynamicCache | None:
    """A model's cache that holds prefix and documents of the prompt already.

    What is not known yet is computed first, and kept. It is the caller's turn on the model.

    Args:
        cache: of documents.
        model: that will run.
        method: of the request.
        prompts: of the request.
        rows: of the batch that the prompt takes.

    Returns:
        None where there is nothing to begin with: no cache, a method or a model that it does not
        serve, no documents, no token behind them, or several prompts.
    """
    if cache is None or len(prompts) != 1 or not serves(cache, model, method):
        return None
    prompt = prompts[0]
    layout = prompt.layout
    if not layout.document_tokens or layout.suffix_start == layout.length:
        return None
    pieces = _pieces(cache, model, prompt.prefix_ids, prompt.documents_ids)
    return filled_cache(pieces, rows)


def precompute(cache: DocumentCache, model: PreTrainedModel, prompt: TokenizedPrompt) -> int:
    """Compute and keep what is not known yet of the prompt's prefix and documents.

    Returns:
        How many pieces, prefix and documents, were computed.
    """
    before = cache.misses
    with turn(model), in_eval_mode(model):
        _pieces(cache, model, prompt.prefix_ids, prompt.documents_ids)
    return cache.misses - before


def _pieces(
    cache: DocumentCache,
    model: PreTrainedModel,
    prefix: tuple[int, ...],
    documents: Sequence[tuple[int, ...]],
) -> list[DocumentStates]:
    """States of the prefix and of each document, those without tokens left out."""
    device = device_of(model)
    wanted: list[tuple[int, ...]] = [()] if prefix else []  # no tokens: the prefix itself
    wanted += [ids for ids in documents if ids]
    keys = {ids: _key(model, prefix, ids) for ids in wanted}
    known = {
        ids: cache.get(key, len(ids) if ids else len(prefix), device) for ids, key in keys.items()
    }
    missing = [ids for ids, states in known.items() if states is None and ids]
    if any(states is None for states in known.values()):
        of_prefix, of_documents = document_states(model, prefix, missing, device)
        computed = dict(zip(missing, of_documents, strict=True))
        if prefix and known[()] is None:
            computed[()] = of_prefix
        for ids, states in computed.items():
            cache.put(keys[ids], states)
        known |= computed
    return [found for ids in wanted if (found := known[ids]) is not None]


def _key(model: PreTrainedModel, prefix: tuple[int, ...], document: tuple[int, ...]) -> str:
    """Name of the states by everything they depend on."""
    text = f"{_FORMAT}|{_fingerprint(model)}|{prefix}|{document}"
    return hashlib.sha256(text.encode()).hexdigest()


_fingerprints: WeakKeyDictionary[PreTrainedModel, tuple[tuple[int, ...], str]] = WeakKeyDictionary()


def _fingerprint(model: PreTrainedModel) -> str:
    """What tells this model from others: its config, and some numbers of every weight.

    Taken anew when weights were changed in place since.
    """
    weights = [*model.named_parameters(), *model.named_buffers()]
    state = tuple(each._version for _, each in weights) + tuple(id(each) for _, each in weights)
    remembered = _fingerprints.get(model)
    if remembered is not None and remembered[0] == state:
        return remembered[1]
    digest = hashlib.sha256(model.config.to_json_string(use_diff=False).encode())
    for name, weight in weights:
        digest.update(f"{name}{tuple(weight.shape)}{weight.dtype}".encode())
        if weight.device.type != "meta" and weight.numel():
            digest.update(_sample(weight).numpy().tobytes())
    found = digest.hexdigest()
    _fingerprints[model] = (state, found)
    return found


def _sample(weight: Tensor) -> Tensor:
    flat = weight.detach().reshape(-1)
    every = max(1, flat.numel() // _SAMPLES)
    return flat[::every].to(device="cpu", dtype=torch.float64)


def _write(path: Path, states: DocumentStates) -> None:
    """Save a file whole or not at all: others may be reading and writing the same."""
    tensors: dict[str, Tensor] = {}
    for layer, (key, value) in enumerate(zip(states.keys, states.values, strict=True)):
        tensors[f"key.{layer}"] = key.contiguous().cpu()
        tensors[f"value.{layer}"] = value.contiguous().cpu()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        os.close(handle)
        try:
            save_file(tensors, name, metadata={"format": _FORMAT})
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise UnsupportedGenerationError(
            f"States of documents cannot be saved in {str(path.parent)!r} ({error.strerror}). Pass "
            "DocumentCache a directory that can be written, or none."
        ) from error


def _read(path: Path, tokens: int, device: torch.device) -> DocumentStates | None:
    if not path.is_file():
        return None
    try:
        tensors: dict[str, Any] = load_file(path, device=str(device))
        layers = range(len(tensors) // 2)
        states = DocumentStates(
            keys=tuple(tensors[f"key.{layer}"] for layer in layers),
            values=tuple(tensors[f"value.{layer}"] for layer in layers),
        )
        if states.tokens == tokens and all(each.ndim == 3 for each in states.keys):
            return states
        problem = f"{states.tokens} tokens where {tokens} are expected"
    except (OSError, SafetensorError, KeyError, IndexError) as error:
        problem = str(error) or type(error).__name__
    warn_caller(
        f"{path} is damaged ({problem}): its document is computed again. Delete the file if this "
        "comes back.",
        UserWarning,
    )
    return None
