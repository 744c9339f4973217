"""From a constructor's arguments to a model, its method and its stop strings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rag_middle import Method, RagMiddleModel, UnsupportedGenerationError
from rag_middle.generation import loaded_parts, shared_model
from rag_middle.integration import LOADING, named_model, with_token


def loaded_model(
    model_name: str | Path | None,
    *,
    model: Any | None,
    tokenizer: Any | None,
    tokenizer_name: str | Path | None,
    method: Method,
    context_window: int | None,
    device_map: str | Mapping[str, Any] | None,
    model_kwargs: Mapping[str, Any],
    tokenizer_kwargs: Mapping[str, Any],
    token: str | bool | None,
) -> RagMiddleModel:
    """A model that runs under `method`; arguments are those of `RagMiddleLLM`.

    Raises:
        UnsupportedGenerationError: arguments that contradict each other.
    """
    if model is None:
        rest = dict(model_kwargs)
        own = {name: rest.pop(name) for name in LOADING if name in rest}
        arguments = {
            "context_window": context_window,
            "device_map": device_map,
            "tokenizer": tokenizer or tokenizer_name,
            **own,
            "model_options": {**rest, **(own.get("model_options") or {})},
            "tokenizer_options": {**tokenizer_kwargs, **(own.get("tokenizer_options") or {})},
        }
        return shared_model(
            model_name or named_model(None), method=method, **with_token(arguments, token)
        )
    loading = {"device_map": device_map, "model_kwargs": model_kwargs, "token": token}
    useless = [name for name, value in loading.items() if value]
    if useless:
        raise UnsupportedGenerationError(
            f"{' and '.join(useless)} say how to load a model, and model= is loaded already. Pass "
            "model_name= instead, or leave them out."
        )
    if isinstance(model, RagMiddleModel):
        context_window = context_window or model.context_window
        model, tokenizer = model.model, tokenizer or model.tokenizer
    assert tokenizer is not None, "model_parts() has found one"
    return RagMiddleModel(model, tokenizer, method=method, context_window=context_window)


def model_parts(
    model: Any,
    tokenizer: Any,
    tokenizer_name: str | Path | None,
    tokenizer_kwargs: Mapping[str, Any],
) -> tuple[Any, Any, dict[str, Any]]:
    """Model and tokenizer, and the options that a pipeline was made with.

    Raises:
        UnsupportedGenerationError: no model of transformers, no pipeline for text generation, or
            no tokenizer.
    """
    if isinstance(model, str | Path):
        raise UnsupportedGenerationError(
            f"model= is a loaded model, got {str(model)!r}: pass model_name={str(model)!r}."
        )
    if model is None or isinstance(model, RagMiddleModel):
        return model, tokenizer, {}
    parts = loaded_parts(model, tokenizer or tokenizer_name, tokenizer_kwargs)
    return parts.network, parts.tokenizer, parts.options


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
