"""Weights loaded by name: once in a process, however many objects ask for them, and in its workers.

**How long they stay.** Weights stay as long as any model that runs on them exists. Those used last
stay beyond that, until others are asked for or `release_models` is called: a program that makes a
model object for each question, as notebooks and chains do, loads them once.
"""

from __future__ import annotations

import gc
import json
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Unpack
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rag_middle.checkpoints import checkpoint_states
from rag_middle.errors import ConfigError
from rag_middle.generation.identity import model_digests
from rag_middle.generation.model import (
    FromPretrainedKwargs,
    RagMiddleModel,
    checked_arguments,
)
from rag_middle.options import LOADING_OPTIONS, without_secrets

_lock = threading.Lock()  # of loading too: threads that ask meanwhile wait for it
#: Networks that are used, by what they were loaded with.
_networks: WeakValueDictionary[str, PreTrainedModel] = WeakValueDictionary()
#: The tokenizer of each, and the arguments of loading: an object among these may only have an
#: address to be known by, so it has to live as long.
_loaded_with: WeakKeyDictionary[
    PreTrainedModel, tuple[PreTrainedTokenizerBase, Mapping[str, Any]]
] = WeakKeyDictionary()
_latest: list[PreTrainedModel] = []  # one at most


def shared_model(
    name_or_path: str | Path, **options: Unpack[FromPretrainedKwargs]
) -> RagMiddleModel:
    """As `RagMiddleModel.from_pretrained`, on weights that are loaded already if they can be.

    They can where name, arguments of loading and the state of the files (size and time of change of
    a folder's files, the commit in the local cache of the hub) are the same. Any number of threads
    may ask.

    Args:
        name_or_path: a directory, or a name on the hub.
        options: of `RagMiddleModel.from_pretrained`; those of `RagMiddleModel` are of this model
            only.

    Raises:
        RagMiddleError: as `RagMiddleModel.from_pretrained`.
    """
    own, loading = checked_arguments(options)
    arguments: dict[str, Any] = {"name_or_path": _located(name_or_path), **loading}
    if isinstance(tokenizer := arguments.get("tokenizer"), str | Path):
        arguments["tokenizer"] = _located(tokenizer)
    with _lock:
        network, tokenizer = _loaded(arguments)
    return RagMiddleModel(network, tokenizer, **own)


def release_models() -> None:
    """Free the weights that no model object uses any longer, and cached memory of GPUs.

    Those of models that exist stay with these; delete the models first.
    """
    with _lock:
        _latest.clear()
        gc.collect()  # what runs on them may be a part of a cycle
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _located(name_or_path: str | Path) -> str:
    """The whole path of what is here: a relative one means another where the program works next."""
    path = os.path.expanduser(name_or_path)
    return os.path.abspath(path) if os.path.exists(path) else str(name_or_path)


def _loaded(arguments: Mapping[str, Any]) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Network and tokenizer, loaded now if they are gone; they are those used last from here on."""
    network = _networks.get(_key(arguments))
    if network is None:
        _latest.clear()  # before others need its memory
        loaded = RagMiddleModel.from_pretrained(**arguments, self_check=False)
        network = loaded.model
        _networks[_key(arguments)] = network  # under the commit that was fetched just now
        _loaded_with[network] = loaded.tokenizer, arguments
    _latest[:] = [network]
    return network, _loaded_with[network][0]


def _key(arguments: Mapping[str, Any]) -> str:
    by_name = {}
    for name, value in arguments.items():
        if name in LOADING_OPTIONS:  # a token changes no weights
            value = without_secrets(value)
        if value is not None and value != {}:
            by_name[name] = value
    return json.dumps([by_name, checkpoint_states(arguments)], sort_keys=True, default=_identity)


def _identity(value: Any) -> Any:
    """What tells an argument from others: its content, else its address."""
    if isinstance(value, Path | torch.dtype | torch.device):
        return str(value)
    if isinstance(value, Mapping):
        return dict(value)
    if not isinstance(value, PreTrainedTokenizerBase) and callable(getattr(value, "to_dict", None)):
        return value.to_dict()
    return f"{type(value).__qualname__} at {id(value)}"


def origin(model: RagMiddleModel) -> dict[str, Any]:
    """Where workers find the model, in any working directory, and what tells it from others.

    Returns:
        The fields ``model`` and ``digests`` of `ModelCopy`.
    """
    name = str(model.model.config._name_or_path)
    return {"model": _located(name), "digests": model_digests(model.model, model.tokenizer)}


@dataclass(frozen=True, slots=True)
class ModelCopy:
    """The model of a run, as a worker loads it.

    Attributes:
        model: directory or hub name.
        options: of `RagMiddleModel.from_pretrained`.
        digests: what tells the model from others (`model_digests`), so that a worker that finds
            another one refuses it; what is None, or not there, is not compared.
    """

    model: str
    options: Mapping[str, Any] = field(default_factory=dict)
    digests: Mapping[str, str | None] = field(default_factory=dict)

    def load(self) -> RagMiddleModel:
        """The model, in this process.

        Raises:
            ConfigError: the model here is another one.
            RagMiddleError: it cannot be loaded.
        """
        loaded = RagMiddleModel.from_pretrained(self.model, **self.options)
        here = model_digests(loaded.model, loaded.tokenizer) if self.digests else {}
        different = [
            part
            for part, digest in self.digests.items()
            if digest and here.get(part) not in (None, digest)
        ]
        if different:
            raise ConfigError(
                f"A worker found other {', '.join(different)} under {self.model!r} than this run "
                "has. Save the model as it is, copy it to every machine, under the same path, and "
                "run it again."
            )
        return loaded
