"""Models that are loaded already, as people have them: a network and its tokenizer, a pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rag_middle.errors import UnsupportedGenerationError
from rag_middle.generation.loading import load_tokenizer
from rag_middle.generation.transformers_options import transformers_options
from rag_middle.wording import Argument, shortened

__all__ = ["LoadedParts", "loaded_parts"]


@dataclass(frozen=True, slots=True)
class LoadedParts:
    """What a loaded model consists of.

    Attributes:
        network: the model.
        tokenizer: its tokenizer.
        options: of generation, that a pipeline was made with.
    """

    network: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    options: dict[str, Any]


def loaded_parts(model: Any, tokenizer: Any = None) -> LoadedParts:
    """Network, tokenizer and options of a loaded model.

    Args:
        model: a causal language model of transformers, or a pipeline with one.
        tokenizer: of the model, or its name; a pipeline has its own.

    Raises:
        UnsupportedGenerationError: neither of these, a pipeline for another task, or a model
            without its tokenizer.
    """
    options: dict[str, Any] = {}
    # By what it has: the class would load transformers' pipelines for everybody.
    if callable(getattr(model, "postprocess", None)) and hasattr(model, "task"):
        if model.task != "text-generation":
            raise UnsupportedGenerationError(
                f"The pipeline is for {model.task!r}, and only pipelines for 'text-generation' "
                "hold a decoder that answers prompts: make one of these."
            )
        stated = {  # where these are depends on the release of transformers
            **(getattr(model, "_forward_params", None) or {}),
            **(getattr(model, "_generate_kwargs", None) or {}),
        }
        options = transformers_options("pipeline", stated)
        model, tokenizer = model.model, tokenizer or model.tokenizer
    if not callable(getattr(model, "can_generate", None)):
        raise UnsupportedGenerationError(
            Argument("model"),
            " must be a name, a directory, a RagMiddleModel, a loaded causal language model with "
            f"its tokenizer, or a text-generation pipeline, got {shortened(repr(model))}.",
        )
    if tokenizer is None:
        raise UnsupportedGenerationError(
            "A loaded model needs its ",
            Argument("tokenizer"),
            ": pass that too, as an object or by name. Or wrap both: RagMiddleModel(model, "
            "tokenizer).",
        )
    if isinstance(tokenizer, str | Path):
        tokenizer = load_tokenizer(tokenizer, revision=None, trust_remote_code=False, options={})
    return LoadedParts(model, tokenizer, options)
