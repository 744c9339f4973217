"""What tells a model from others, and whether a profile is about this one."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from dataclasses import replace
from importlib.metadata import version
from typing import Any
from weakref import ref

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import rag_middle
from rag_middle.attention import model_traits
from rag_middle.attention.locks import OfModel
from rag_middle.fingerprint import (
    adapters_sha256,
    config_sha256,
    fingerprint,
    settings_sha256,
    weights_sample,
)
from rag_middle.generation.own_config import TAKEN, end_tokens
from rag_middle.methods import Method
from rag_middle.methods.base import shape_of
from rag_middle.notices import ProfileWarning, warn_caller
from rag_middle.profiles import ModelFacts

_REMEMBERED = 64

#: Profiles that were compared with a model, by where they came from, and what the model was like.
#: Tuples are replaced, never changed: reading one needs no lock.
_compared: OfModel[tuple[object, ...]] = OfModel()

#: Fields of a model's generation config that change no answer.
_NO_ANSWERS = {"pad_token_id", "bos_token_id", "cache_implementation", "cache_config"}


def model_facts(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> ModelFacts:
    """What a profile says about the model it is made for."""
    config: Any = model.config
    digests = model_digests(model, tokenizer)
    return replace(
        shape_of(model_traits(model)),
        id=display_name(str(config._name_or_path or type(model).__name__)),
        revision=getattr(config, "_commit_hash", None),
        weights_sample=digests["weights"],
        tokenizer_sha256=digests["tokenizer"],
        config_sha256=digests["config"],
        adapters_sha256=digests["adapters"],
    )


def tokenizer_sha256(tokenizer: PreTrainedTokenizerBase) -> str:
    """A digest of the chat template, with the tokens it writes by name, and of a fast tokenizer.

    Of another tokenizer, the vocabulary.
    """
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    made_of: Any = sorted(tokenizer.get_vocab().items())
    if backend is not None:
        made_of = json.loads(backend.to_str())
        # Set by the last call that padded or cut, and no part of what it is.
        made_of.pop("padding", None)
        made_of.pop("truncation", None)
    template = tokenizer.chat_template
    named = {
        name: str(token)
        for name, token in tokenizer.special_tokens_map.items()
        if name in str(template)  # {{ bos_token }}
    }
    content = json.dumps([made_of, template, named], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def generation_sha256(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> str:
    """A digest of what the model's own generation config says of answers, and of end tokens."""
    own = vars(model.generation_config)
    settings = {name: own.get(name) or None for name in TAKEN - _NO_ANSWERS - {"eos_token_id"}}
    return settings_sha256([settings, sorted(end_tokens(model, tokenizer, (), None))])


def model_digests(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> dict[str, str | None]:
    """What decides answers: weights (a sample), tokenizer, config, adapters, generation config.

    Returns:
        The same for one model wherever it is loaded; ``None`` for offloaded weights, and where
        there are no adapters.
    """
    return {
        "weights": weights_sample(model),
        "tokenizer": tokenizer_sha256(tokenizer),
        "config": config_sha256(model.config),
        "adapters": adapters_sha256(model),
        "generation": generation_sha256(model, tokenizer),
    }


def model_identity(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> dict[str, str | None]:
    """Name, revision, type, number format, and 16 digits of each of `model_digests`."""
    config: Any = model.config
    digests = model_digests(model, tokenizer)
    digests["weights"] = digests["weights"] or fingerprint(model)
    return {
        "name": display_name(str(config._name_or_path or type(model).__name__)),
        "revision": getattr(config, "_commit_hash", None),
        "type": model_traits(model).model_type,
        "dtype": str(model.dtype).removeprefix("torch."),
        **{name: digest and digest[:16] for name, digest in digests.items()},
    }


def software(device: torch.device) -> dict[str, str]:
    """Versions, and the device."""
    versions = {"rag-middle": rag_middle.__version__, "python": platform.python_version()}
    for package in ("torch", "transformers", "numpy"):
        versions[package] = version(package)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {**versions, "device": f"{device.type} ({name})"}


def display_name(name: str) -> str:
    """What others are told of a model: its name on the hub, or the folder's or file's own.

    The rest of the path is left out: it says nothing about the model, and something about
    this machine.
    """
    is_path = os.path.isabs(name) or os.path.exists(name)
    return os.path.basename(os.path.abspath(name)) if is_path else name


def warn_of_number(method: Method, documents: int) -> None:
    """Warn where a prompt has many more or fewer documents than those a profile was measured on."""
    for provenance in filter(None, (part.provenance for part in method.parts)):
        measured = provenance.profile.data.get("documents")
        if isinstance(measured, int) and 2 * abs(documents - measured) > measured > 0 < documents:
            warn_caller(
                ProfileWarning(
                    f"{provenance.source} was measured with {measured} documents, and this prompt "
                    f"has {documents}: it may not hold here. Run `rag-middle diagnose` with "
                    f"`--documents {documents}`."
                )
            )


def warn_of_mismatch(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, method: Method
) -> None:
    """Warn where a profile is about another model or version of it, or was no improvement.

    A model of another shape was refused before (`Method.check_fits`), but for an order. Each
    profile is compared once with a model, its adapters as they are switched then, and a tokenizer.
    """
    for part in method.parts:
        provenance, compared = part.provenance, _compared.get(model) or ()
        if provenance is None:
            continue
        about = (ref(tokenizer), tokenizer.chat_template, config_sha256(model.config))
        looked_at = (provenance, *about, adapters_sha256(model))
        if looked_at in compared:
            continue
        _compared.put(model, (looked_at, *compared)[:_REMEMBERED])
        source, profile = provenance.source, provenance.profile
        facts = model_facts(model, tokenizer)
        shape, version = (
            differences(facts)
            for differences in (profile.model.shape_differences, profile.model.version_differences)
        )
        if shape or version:
            other = "for" if shape else "for another version of"
            warn_caller(
                ProfileWarning(
                    f"{source} was made {other} {profile.model.id} "
                    f"({'; '.join(shape + version)}): its settings may not suit this model. Make "
                    "it again, or compare it with method='none' (--method none) on your own "
                    "questions."
                )
            )
        if profile.recommended is False:
            warn_caller(
                ProfileWarning(
                    f"{source} is not recommended: on held-out prompts its settings did not beat "
                    "the unmodified model."
                )
            )
