"""The model of a run, loaded once more where its workers are."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from rag_middle.errors import ConfigError
from rag_middle.generation.identity import model_digests
from rag_middle.generation.model import RagMiddleModel

#: What `model_digests` tells apart, in words.
_PARTS = {
    "weights": "weights",
    "tokenizer": "tokenizer files",
    "config": "settings in config.json",
    "adapters": "adapters",
    "generation": "settings in generation_config.json",
}


def origin(model: RagMiddleModel) -> dict[str, Any]:
    """Where workers find the model, in any working directory, and what tells it from others.

    Returns:
        The fields ``model`` and ``digests`` of `Answering` and `FromDisk`.
    """
    name = str(model.model.config._name_or_path)
    return {
        "model": os.path.realpath(name) if os.path.exists(name) else name,
        "digests": model_digests(model.model, model.tokenizer),
    }


def load_copy(
    name: str,
    options: Mapping[str, Any],
    *,
    device: str | None,
    digests: Mapping[str, str | None],
) -> RagMiddleModel:
    """The model of a run.

    Args:
        name: directory or hub name.
        options: of `RagMiddleModel.from_pretrained`.
        device: of the worker, stands in for that of `options`; None leaves it.
        digests: what `model_digests` says of the model of the run; None is not compared.

    Raises:
        ConfigError: the model here is another one.
        RagMiddleError: it cannot be loaded.
    """
    placed = dict(options) if device is None else {**options, "device": device}
    loaded = RagMiddleModel.from_pretrained(name, **placed)
    here = model_digests(loaded.model, loaded.tokenizer) if digests else {}
    different = [
        _PARTS[part]
        for part, digest in digests.items()
        if digest is not None and here.get(part) not in (None, digest)
    ]
    if different:
        raise ConfigError(
            f"A worker found other {' and '.join(different)} under {name!r} "
            "than those of this run: the folder differs from machine to machine, or it or the "
            "model of this run has changed since that was loaded. Save the model as it is, copy it "
            "to every machine, under the same path, and run it again."
        )
    return loaded
