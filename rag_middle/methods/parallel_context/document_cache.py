"""Document KV cache: documents are prefilled once and reused across questions.

Where documents do not attend to each other (`parallel_context_windows`, `ape`), a document's keys
and values depend on the model, on the prefix and on the document itself. A `DocumentCache`, a KV
cache by document, keeps them: in memory up to a number of bytes, and on disk where it is given a
folder. `cacheblend` begins with them, and lets some tokens attend to other documents again.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import DynamicCache, PreTrainedModel

from rag_middle.attention import in_eval_mode, input_device, turn
from rag_middle.errors import UnsupportedGenerationError
from rag_middle.files import expanded, reason
from rag_middle.fingerprint import fingerprint
from rag_middle.methods.base import Method
from rag_middle.methods.cacheblend import CacheBlend
from rag_middle.methods.cacheblend.cached import blended_cache
from rag_middle.methods.parallel_context import APE, ParallelContextWindows, SetBasedPrompting
from rag_middle.methods.parallel_context.document_states import (
    DocumentStates,
    can_reuse_documents,
    document_states,
    filled_cache,
)
from rag_middle.notices import warn_caller
from rag_middle.plain_data import check_whole
from rag_middle.tokens import TokenizedPrompt

_FORMAT = "rag-middle document states 3"


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
        self.directory = None if directory is None else expanded(directory)
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, str], DocumentStates] = OrderedDict()
        self._bytes = 0
        self._examples: dict[tuple[str, str], DocumentStates] = {}
        self._warned = False
        self._hits = 0
        self._misses = 0

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy begins with an empty memory: the states are as large as `max_bytes`.
        return partial(type(self), max_bytes=self.max_bytes, directory=self.directory), ()

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
        """Forget what is in memory; files stay.

        Call it after an edit of the model in place that `rag_middle.fingerprint.fingerprint` does
        not notice, and delete the files in `directory` then.
        """
        with self._lock:
            self._kept.clear()
            self._examples.clear()
            self._bytes = 0

    def get(
        self, key: str, like: Callable[[], DocumentStates], place: str = ""
    ) -> DocumentStates | None:
        """The states under a key, from memory or disk; None where there are none.

        A file that cannot be read counts as none, with a warning.

        Args:
            key: names them by everything that they depend on.
            like: states of the model's making, of any piece, on whose devices those of a file go.
                Called where there is one.
            place: of the model: what was kept in memory for another lies on other devices.
        """
        with self._lock:
            states = self._kept.get((key, place))
            if states is not None:
                self._kept.move_to_end((key, place))
        if states is None and self.directory is not None:
            states = _read(self._path(key), like)
            if states is not None:
                self._keep((key, place), states)
        with self._lock:
            self._hits += states is not None
            self._misses += states is None
        return states

    def put(self, key: str, states: DocumentStates, place: str = "") -> None:
        """Keep states in memory, and on disk where there is a folder.

        Raises:
            UnsupportedGenerationError: they cannot be saved; they are kept in memory.
        """
        self._keep((key, place), states)
        if self.directory is not None:
            _write(self._path(key), states)

    def _keep(self, key: tuple[str, str], states: DocumentStates) -> None:
        with self._lock:
            if key in self._kept or states.nbytes > self.max_bytes:
                return
            self._kept[key] = states
            self._bytes += states.nbytes
            while self._bytes > self.max_bytes:
                _, dropped = self._kept.popitem(last=False)
                self._bytes -= dropped.nbytes

    def _warn_once(self, message: str) -> None:
        """Warn of what is the same for every file."""
        if not self._warned:
            self._warned = True
            warn_caller(UserWarning(message))

    def _path(self, key: str) -> Path:
        assert self.directory is not None
        return self.directory / key[:2] / f"{key}.safetensors"


def serves(cache: DocumentCache | None, model: PreTrainedModel, method: Method) -> bool:
    """Whether documents of this method's requests come from the cache."""
    # Parts that only reorder documents leave the layers, and so what is cached, alone.
    planning = [part for part in method.parts if type(part).plan is not Method.plan]
    apart = bool(planning) and all(map(_caches_documents_alone, planning))
    return cache is not None and apart and can_reuse_documents(model)


def _caches_documents_alone(method: Method) -> bool:
    """Whether a document's keys and values do not depend on the documents beside it.

    APE's temperature and scale are about the tokens that attend to documents. Windows indented to
    the right move each document by the length of the longest. CacheBlend begins with what they are
    alone.
    """
    if isinstance(method, ParallelContextWindows):
        return not method.right_indentation
    if isinstance(method, SetBasedPrompting):
        return method.parallel_positions
    return isinstance(method, APE | CacheBlend)


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
    pieces = _pieces(cache, model, prompt)
    blend = next((part for part in method.parts if isinstance(part, CacheBlend)), None)
    if blend is None:
        return filled_cache(pieces, rows)
    return blended_cache(
        model,
        prompt,
        pieces,
        share=blend.recompute_share,
        check_layer=blend.check_layer,
        rows=rows,
    )


def precompute(cache: DocumentCache, model: PreTrainedModel, prompt: TokenizedPrompt) -> int:
    """Compute and keep what is not known yet of the prompt's prefix and documents.

    Returns:
        How many pieces, prefix and documents, were computed.

    Raises:
        UnsupportedGenerationError: they cannot be saved.
    """
    before = cache.misses
    with turn(model), in_eval_mode(model):
        _pieces(cache, model, prompt, must_save=True)
    return cache.misses - before


def _pieces(
    cache: DocumentCache,
    model: PreTrainedModel,
    prompt: TokenizedPrompt,
    *,
    must_save: bool = False,
) -> list[DocumentStates]:
    """States of the prefix and of each document, those without tokens left out.

    Raises:
        UnsupportedGenerationError: new ones cannot be saved, and must be. Otherwise that is warned
            of once.
    """
    prefix, device = prompt.prefix_ids, input_device(model)
    known_as, place = fingerprint(model), _place(model)
    wanted: list[tuple[int, ...]] = [()] if prefix else []  # no tokens: the prefix itself
    wanted += [ids for ids in prompt.documents_ids if ids]

    def example() -> DocumentStates:
        if (known_as, place) not in cache._examples:
            token = (*prefix, *wanted[-1])[:1]
            cache._examples[known_as, place] = document_states(model, token, [], device)[0]
        return cache._examples[known_as, place]

    keys = {ids: _key(known_as, prefix, ids) for ids in wanted}
    found = {ids: cache.get(key, example, place) for ids, key in keys.items()}
    pieces = {ids: states for ids, states in found.items() if states is not None}
    missing = [ids for ids in keys if ids not in pieces]
    if missing:
        documents = [ids for ids in missing if ids]
        of_prefix, of_documents = document_states(model, prefix, documents, device)
        computed = dict(zip(documents, of_documents, strict=True))
        if () in missing:
            computed[()] = of_prefix
        for ids, states in computed.items():
            try:
                cache.put(keys[ids], states, place)
            except UnsupportedGenerationError as error:
                if must_save:
                    raise
                cache._warn_once(f"{error} Until then they are kept in memory only.")
        pieces |= computed
    return [pieces[ids] for ids in wanted]


def _place(model: PreTrainedModel) -> str:
    """On which devices a model lies now; a fingerprint is the same wherever that is."""
    devices = groupby(str(parameter.device) for parameter in model.parameters())
    return " ".join(f"{device}*{len([*several])}" for device, several in devices)


def _key(model: str, prefix: tuple[int, ...], document: tuple[int, ...]) -> str:
    """Name of the states by everything they depend on."""
    text = f"{_FORMAT}|{model}|{prefix}|{document}"
    return hashlib.sha256(text.encode()).hexdigest()


def _write(path: Path, states: DocumentStates) -> None:
    """Save a file whole or not at all: others may be reading and writing the same.

    Raises:
        UnsupportedGenerationError: it cannot be saved.
    """
    tensors = {f"key.{layer}": key for layer, key in enumerate(states.keys)}
    tensors |= {f"value.{layer}": value for layer, value in enumerate(states.values)}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        os.close(handle)
        try:
            save_file(tensors, name)
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except (OSError, SafetensorError) as error:
        raise UnsupportedGenerationError(
            f"States of documents cannot be saved in {str(path.parent)!r} ({reason(error)}). Pass "
            "DocumentCache a directory that can be written and has room, or none."
        ) from error


def _read(path: Path, like: Callable[[], DocumentStates]) -> DocumentStates | None:
    if not path.is_file():
        return None
    try:
        tensors = load_file(path)
        keys, values = (
            tuple(tensors[f"{kind}.{i}"].to(x.device) for i, x in enumerate(examples))
            for kind, examples in (("key", like().keys), ("value", like().values))
        )
        return DocumentStates(keys, values)
    except (OSError, SafetensorError, KeyError) as error:
        warn_caller(
            UserWarning(
                f"{path} is damaged ({error}): its document is computed again. Delete the file if "
                "this comes back."
            )
        )
        return None
