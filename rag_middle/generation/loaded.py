"""What people have already: loaded models, pipelines, and options in transformers' names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from rag_middle.errors import UnsupportedGenerationError
from rag_middle.generation.loading import load_tokenizer
from rag_middle.options import renamed
from rag_middle.plain_data import check_keywords
from rag_middle.wording import shortened


def loaded_parts(
    model: Any, tokenizer: Any = None, tokenizer_options: Mapping[str, Any] | None = None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, dict[str, Any]]:
    """A loaded model, its tokenizer, and the options of generation that a pipeline was made with.

    Args:
        model: a causal language model of transformers, or a pipeline with one.
        tokenizer: of the model, or its name; a pipeline has its own.
        tokenizer_options: for a tokenizer that is named.

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
        options = transformers_options("pipeline", _options_of(model))
        model, tokenizer = model.model, tokenizer or model.tokenizer
    if not callable(getattr(model, "can_generate", None)):
        raise UnsupportedGenerationError(
            "model must be a name, a directory, a RagMiddleModel, a loaded causal language model "
            f"with its tokenizer, or a text-generation pipeline, got {shortened(repr(model))}."
        )
    if tokenizer is None:
        raise UnsupportedGenerationError(
            "A loaded model needs its tokenizer: pass that too, as an object or by name. Or wrap "
            "both: RagMiddleModel(model, tokenizer)."
        )
    if isinstance(tokenizer, str | Path):
        tokenizer = load_tokenizer(tokenizer, {"tokenizer_options": tokenizer_options})
    return model, tokenizer, options


def _options_of(pipeline: Any) -> dict[str, Any]:
    """What a pipeline was made with; where that is depends on the release of transformers."""
    options = getattr(pipeline, "_generate_kwargs", None)
    if options is None:  # among defaults, from which only other values can be told
        configs = pipeline.model.generation_config, pipeline._default_generation_config
        usual = [config.to_dict() for config in configs if config is not None]
        usual += [GenerationConfig()._get_default_generation_params()]
        usual += [{"pad_token_id": pipeline.tokenizer.pad_token_id}]
        options = {
            name: value
            for name, value in pipeline.generation_config.to_dict().items()
            if all(value != defaults.get(name) for defaults in usual)
        }
    return {**pipeline._forward_params, **options}


#: Said of a generation config or of a stop string's tokens, and known here anyway.
_KNOWN_ANYWAY = {"bos_token_id", "tokenizer", "transformers_version"}


def transformers_options(argument: str, keywords: Mapping[str, Any] | None) -> dict[str, Any]:
    """Options that keywords of ``generate`` or of a pipeline mean, see `options.renamed`.

    Fields of a ``generation_config`` count, too. `argument` is what the caller calls the keywords.

    Raises:
        UnsupportedGenerationError: no mapping, or as of `renamed`.
    """
    check_keywords(argument, keywords)
    options = dict(keywords or {})
    config = options.pop("generation_config", None)
    if config is not None:
        options = {**{n: v for n, v in config.to_diff_dict().items() if v}, **options}
    if options.get("return_full_text") is False:  # as it is here, and in nearly every notebook
        del options["return_full_text"]
    return renamed({n: v for n, v in options.items() if v is not None and n not in _KNOWN_ANYWAY})
