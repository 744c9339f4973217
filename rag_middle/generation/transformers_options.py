"""Keyword arguments of transformers' ``generate`` and pipelines, in the names of this package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rag_middle.errors import UnsupportedGenerationError
from rag_middle.options import without_neutral
from rag_middle.plain_data import check_keywords

__all__ = ["transformers_options"]

_NAMES = {"stop_strings": "stop", "stop_sequence": "stop", "num_return_sequences": "n"}
#: Said of a generation config or of a stop string's tokens, and known here anyway.
_KNOWN_ANYWAY = ("bos_token_id", "tokenizer", "transformers_version")


def transformers_options(argument: str, keywords: Mapping[str, Any] | None) -> dict[str, Any]:
    """Options of `GenerationOptions` (and ``n``) that mean what the keywords mean.

    ``do_sample=False`` is temperature 0; ``do_sample=True`` is temperature 1 unless another one
    above 0 is given. A temperature alone draws, too. Fields of a ``generation_config`` come before
    keywords. What is neither known nor without effect keeps its name, for the caller to refuse.

    Args:
        argument: what the caller calls them, for messages.
        keywords: of ``generate`` or a text-generation pipeline.

    Raises:
        UnsupportedGenerationError: no mapping, or ``do_sample`` is neither True nor False.
    """
    check_keywords(argument, keywords)
    stated = dict(keywords or {})
    config = stated.pop("generation_config", None)
    if config is not None:
        fields = config.to_diff_dict().items()
        stated = {**{name: value for name, value in fields if value}, **stated}
    sampled = stated.pop("do_sample", None)
    if not isinstance(sampled, bool | None):
        raise UnsupportedGenerationError(f"do_sample must be True or False, got {sampled!r}.")
    options = {
        _NAMES.get(name, name): value
        for name, value in without_neutral(stated).items()
        if value is not None and name not in _KNOWN_ANYWAY
    }
    if sampled is False:
        options["temperature"] = 0.0
    elif sampled:
        options["temperature"] = options.get("temperature") or 1.0
    return options
