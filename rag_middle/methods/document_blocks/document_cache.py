"""Document KV cache: documents are prefilled once and reused across questions.

Where documents do not attend to each other (`parallel_context_windows`, `ape`), a document's keys
and values depend on the model, on the prefix and on the document itself. A `DocumentCache`, a KV
cache by document, keeps them: in memory up to a number of bytes, and on disk where it is given a
folder. `cacheblend` begins with them, and lets some tokens attend to other documents again.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from rag_middle.attention import (
    applied,
    in_eval_mode,
    input_device,
    locked,
    model_traits,
    modules_by_layer,
    puts_virtual_tokens,
    waits_for_invocation,
)
from rag_middle.attention.seam import MODEL_CACHE
from rag_middle.errors import OutputWriteError, UnsupportedGenerationError
from rag_middle.files import expanded, write_files
from rag_middle.fingerprint import fingerprint
from rag_middle.methods.base import Method
from rag_middle.methods.document_blocks import (
    CacheBlend,
    DocumentsApart,
    ParallelContextWindows,
)
from rag_middle.methods.document_blocks.cached_blend import blended_cache
from rag_middle.notices import warn_caller
from rag_middle.plain_data import check_whole
from rag_middle.tokens import TokenizedPrompt

_FORMAT = "rag-middle document states 3"


@dataclass(frozen=True, slots=True)
class DocumentStates:
    """What a model keeps of a piece of a prompt: of the prefix, or of a document after it.

    Attributes:
        keys: per layer, `[g, m, d]`, rotated at their positions.
        values: per layer, `[g, m, dv]`.
    """

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]

    @property
    def nbytes(self) -> int:
        """Memory that the tensors take."""
        return sum(tensor.nbytes for tensor in (*self.keys, *self.values))

    def on(self, devices: Sequence[torch.device]) -> DocumentStates:
        """The same on the device of each layer."""
        # The last layers may share the states of others, and have none of their own.
        keys, values = (
            tuple(tensor.to(device) for tensor, device in zip(tensors, devices, strict=False))
            for tensors in (self.keys, self.values)
        )
        return DocumentStates(keys, values)


class DocumentCache:
    """Keys and values of documents, by content.

    One cache may serve several models, prefixes and threads. What is kept in memory lies where it
    was computed or first asked for (on the GPU, for a model there) and is dropped least recently
    used first.

    Args:
        max_bytes: memory for states; 0 to keep them on disk only.
        directory: keeps them there too, one safetensors file each, named by content; created when
            needed. Whoever can write there can change what a model reads.

    Attributes:
        hits: pieces (prefixes and documents) that were found so far.
        misses: pieces that had to be computed so far.

    Raises:
        UnsupportedGenerationError: `max_bytes` is no whole number from 0 on.
    """

    def __init__(self, *, max_bytes: int = 2**30, directory: str | Path | None = None) -> None:
        check_whole("max_bytes", max_bytes, least=0)
        self.max_bytes = max_bytes
        self.directory = None if directory is None else expanded(directory)
        self.hits = self.misses = 0
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, DocumentStates] = OrderedDict()
        self._bytes = 0

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy begins with an empty memory: the states are as large as `max_bytes`.
        return partial(type(self), max_bytes=self.max_bytes, directory=self.directory), ()

    @property
    def nbytes(self) -> int:
        """Memory in use."""
        return self._bytes

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
            self._bytes = 0

    def get(self, key: str, devices: Sequence[torch.device] | None = None) -> DocumentStates | None:
        """The states under a key, from memory or disk; None where there are none.

        A file that cannot be read counts as none, with a warning.

        Args:
            key: as `put` got it.
            devices: of the layers: where states from a file go, and stay; None for the CPU.
        """
        with self._lock:
            states = self._kept.get(key)
            if states is not None:
                self._kept.move_to_end(key)
        if states is None and self.directory is not None:
            states = _read(self._path(self.directory, key))
            if states is not None:
                states = states if devices is None else states.on(devices)
                self._keep(key, states)
        with self._lock:
            self.hits += states is not None
            self.misses += states is None
        return states

    def put(self, key: str, states: DocumentStates) -> None:
        """Keep states in memory, and on disk where there is a folder.

        Args:
            key: names them by everything that they depend on.
            states: of a piece.

        Raises:
            UnsupportedGenerationError: they cannot be saved; they are kept in memory.
        """
        self._keep(key, states)
        if self.directory is None:
            return
        tensors = {f"key.{layer}": x.contiguous() for layer, x in enumerate(states.keys)}
        tensors |= {f"value.{layer}": x.contiguous() for layer, x in enumerate(states.values)}
        path = self._path(self.directory, key)
        try:
            write_files(path.parent, {path.name: save(tensors)})
        except OutputWriteError as error:
            raise UnsupportedGenerationError(
                f"States of documents cannot be saved. {error} Or pass DocumentCache no directory."
            ) from error

    def _keep(self, key: str, states: DocumentStates) -> None:
        with self._lock:
            if key in self._kept or states.nbytes > self.max_bytes:
                return
            self._kept[key] = states
            self._bytes += states.nbytes
            while self._bytes > self.max_bytes:
                _, dropped = self._kept.popitem(last=False)
                self._bytes -= dropped.nbytes

    @staticmethod
    def _path(directory: Path, key: str) -> Path:
        return directory / key[:2] / f"{key}.safetensors"


def _read(path: Path) -> DocumentStates | None:
    if not path.is_file():
        return None
    try:
        tensors = load_file(path)
        layers = range(len(tensors) // 2)
        keys, values = (tuple(tensors[f"{x}.{i}"] for i in layers) for x in ("key", "value"))
        return DocumentStates(keys, values)
    except (OSError, SafetensorError, KeyError) as error:
        warn_caller(
            UserWarning(
                f"{path} is damaged ({error}): its document is computed again. Delete the file if "
                "this comes back."
            )
        )
        return None


# -- with a model ---------------------------------------------------------------------------------


def can_reuse_states(model: PreTrainedModel) -> bool:
    """Whether states of tokens stay right in other prompts of this model.

    Not where its attention cannot be reached, nor where a layer keeps something else than every
    token's key and value (windows, linear attention), nor where rotary frequencies depend on the
    length of the prompt, or an adapter on which tokens are read together, nor where weights are on
    no device yet (offloaded ones), nor where a model remembers positions of pictures (Qwen2-VL).
    """
    traits = model_traits(model)
    rope_type = traits.rope_type or ""
    return (
        bool(traits.layers and rope_type)
        and not traits.mixed
        and not any(kind in rope_type for kind in ("dynamic", "longrope"))
        and not any(layer.sliding_window for layer in traits.layers.values())
        and not waits_for_invocation(model)
        and not puts_virtual_tokens(model)
        and not any(parameter.is_meta for parameter in model.parameters())
        and not any(hasattr(module, "rope_deltas") for module in model.modules())
    )


def serves(cache: DocumentCache | None, model: PreTrainedModel, method: Method) -> bool:
    """Whether documents of this method's requests come from the cache."""
    # Parts that only reorder documents leave the layers, and so what is cached, alone.
    planning = [part for part in method.parts if type(part).plan is not Method.plan]
    # A document's keys and values do not depend on the documents beside it where it is read after
    # the prefix and stays there, or is rotated on to its position in the prompt.
    alone = all(
        isinstance(part, DocumentsApart) and part.reading.placement in ("from_start", "to_order")
        for part in planning
    )
    return cache is not None and bool(planning) and alone and can_reuse_states(model)


def with_documents(
    cache: DocumentCache | None,
    model: PreTrainedModel,
    method: Method,
    prompts: Sequence[TokenizedPrompt],
) -> DynamicCache | None:
    """A model's cache that holds prefix and documents of the prompt already.

    What is not known yet is computed first, and kept. The caller has the model `locked`.

    Args:
        cache: of documents.
        model: that will run.
        method: of the request.
        prompts: of the request.

    Returns:
        None where there is nothing to begin with: no cache, a method or a model that it does not
        serve, no documents, no token after them, or several prompts.
    """
    if cache is None or len(prompts) != 1 or not serves(cache, model, method):
        return None
    prompt = prompts[0]
    layout = prompt.layout
    if not layout.document_tokens or layout.suffix_start == layout.length:
        return None
    filled = _filled_cache(model, _pieces(cache, model, prompt))
    for part in method.parts:
        if isinstance(part, CacheBlend):
            filled = blended_cache(model, prompt, filled, part)
    return filled


def precompute(cache: DocumentCache, model: PreTrainedModel, prompt: TokenizedPrompt) -> int:
    """Compute and keep what is not known yet of the prompt's prefix and documents.

    Returns:
        How many pieces, prefix and documents, were computed.

    Raises:
        UnsupportedGenerationError: they cannot be saved.
    """
    before = cache.misses
    with locked(model), in_eval_mode(model):
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
            of.
    """
    prefix, known_as = prompt.prefix_ids, fingerprint(model)
    wanted: list[tuple[int, ...]] = [()] if prefix else []  # no tokens: the prefix itself
    wanted += [ids for ids in prompt.documents_ids if ids]
    keys = {
        ids: hashlib.sha256(f"{_FORMAT}|{known_as}|{prefix}|{ids}".encode()).hexdigest()
        for ids in wanted
    }
    devices = _devices(model)
    found = {ids: cache.get(key, devices) for ids, key in keys.items()}
    pieces = {ids: states for ids, states in found.items() if states is not None}
    missing = [ids for ids in keys if ids not in pieces]
    if missing:
        failure: UnsupportedGenerationError | None = None
        computed = _read_apart(model, prefix, [ids for ids in missing if ids])
        for ids in missing:
            pieces[ids] = computed[ids]
            try:
                cache.put(keys[ids], computed[ids])
            except UnsupportedGenerationError as error:
                if must_save:
                    raise
                failure = error
        if failure is not None:
            warn_caller(UserWarning(f"{failure} Until then they are kept in memory only."))
    return [pieces[ids] for ids in wanted]


@torch.no_grad()
def _read_apart(
    model: PreTrainedModel, prefix: tuple[int, ...], documents: Sequence[tuple[int, ...]]
) -> dict[tuple[int, ...], DocumentStates]:
    """States of documents, and under no tokens those of their prefix, in one pass over all."""
    prompt = TokenizedPrompt.assembled(
        prefix=prefix, documents=documents, suffix=(), document_ids=[None] * len(documents)
    )
    cache = DynamicCache()
    with applied(model, ParallelContextWindows(), [prompt]):
        # The base model: logits of documents are of no use.
        model.base_model(
            input_ids=torch.tensor([prompt.input_ids], device=input_device(model)),
            use_cache=True,
            **{MODEL_CACHE: cache},
        )
    layers: list[Any] = cache.layers

    def piece(start: int, end: int) -> DocumentStates:
        # Copies: a view would keep the whole prompt alive.
        return DocumentStates(
            keys=tuple(layer.keys[0, :, start:end].clone() for layer in layers),
            values=tuple(layer.values[0, :, start:end].clone() for layer in layers),
        )

    spans = [(0, len(prefix)), *prompt.layout.documents]
    return {ids: piece(*span) for ids, span in zip([(), *documents], spans, strict=True)}


def _filled_cache(model: PreTrainedModel, pieces: Sequence[DocumentStates]) -> DynamicCache:
    """A cache of one row that holds these pieces one after the other."""
    cache, devices = DynamicCache(), _devices(model)
    # They may have been kept for the same model on other devices.
    pieces = [piece.on(devices) for piece in pieces]
    for layer in range(len(pieces[0].keys)):
        keys = torch.cat([piece.keys[layer] for piece in pieces], dim=1)
        values = torch.cat([piece.values[layer] for piece in pieces], dim=1)
        cache.update(keys[None], values[None], layer)
    return cache


def _devices(model: PreTrainedModel) -> list[torch.device]:
    """Of each layer: a model may be spread over several."""
    modules = modules_by_layer(model, model_traits(model))
    return [next(modules[layer].parameters()).device for layer in sorted(modules)]
