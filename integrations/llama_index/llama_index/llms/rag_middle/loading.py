"""From a constructor's arguments to a model, its method and its stop strings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rag_middle import RagMiddleModel, UnsupportedGenerationError, integration
from rag_middle.generation import loaded_parts, shared_model
from rag_middle.integration import LOADING, with_token


def named_model(
    name: str | Path | None,
    tokenizer: Any,
    model_kwargs: Mapping[str, Any],
    tokenizer_kwargs: Mapping[str, Any],
    token: str | bool | None,
    **own: Any,
) -> RagMiddleModel:
    """A model that is loaded by name, or shares weights that are; by default that of commands.

    Args:
        name: of the model.
        tokenizer: another one, or where it comes from.
        model_kwargs: arguments of `RagMiddleModel.from_pretrained` and of transformers' function.
        tokenizer_kwargs: of transformers' function.
        token: of the hub.
        own: arguments of `RagMiddleModel.from_pretrained`, which those in `model_kwargs` replace.
    """
    loading = {name: value for name, value in model_kwargs.items() if name in LOADING}
    of_model = {name: value for name, value in model_kwargs.items() if name not in LOADING}
    arguments = {
        **own,
        "tokenizer": tokenizer,
        **loading,
        "model_options": {**of_model, **(loading.get("model_options") or {})},
        "tokenizer_options": {**tokenizer_kwargs, **(loading.get("tokenizer_options") or {})},
    }
    return shared_model(name or integration.named_model(None), **with_token(arguments, token))


def wrapped_model(
    model: Any, tokenizer: Any, tokenizer_kwargs: Mapping[str, Any]
) -> tuple[RagMiddleModel | None, dict[str, Any]]:
    """A loaded model as one of this package, and the options that a pipeline was made with.

    Without a model there is None.

    Raises:
        UnsupportedGenerationError: no model of transformers, no pipeline for text generation, or
            no tokenizer.
    """
    if model is None:
        return None, {}
    if isinstance(model, str | Path):
        raise UnsupportedGenerationError(
            f"model= is a loaded model, got {str(model)!r}: pass model_name={str(model)!r}."
        )
    if not isinstance(model, RagMiddleModel):
        network, loaded, options = loaded_parts(model, tokenizer, tokenizer_kwargs)
        return RagMiddleModel(network, loaded), options
    if tokenizer is not None:
        network, loaded, _ = loaded_parts(model.model, tokenizer, tokenizer_kwargs)
        own: Any = {"method": model.method, "context_window": model.context_window}
        model = RagMiddleModel(network, loaded, **own)
    return model, {}


def stop_strings(tokenizer: Any, ids: Sequence[int]) -> tuple[str, ...]:
    """The text of each token id.

    Raises:
        UnsupportedGenerationError: an id that the tokenizer does not have, or one that is a part
            of a character.
    """
    texts = [tokenizer.decode([token], skip_special_tokens=False) for token in ids]
    if not all(texts) or any("\N{REPLACEMENT CHARACTER}" in text for text in texts):
        raise UnsupportedGenerationError(
            f"stopping_ids: {list(ids)} are no tokens with texts of their own. Give the ids of "
            "whole tokens, or stop strings: generate_kwargs={'stop': [...]}."
        )
    return tuple(texts)
