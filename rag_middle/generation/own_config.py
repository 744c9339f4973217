"""What a model's own generation config (``generation_config.json``) has a say in.

transformers fills every field that a request leaves open from there. Some of them would change what
is measured, some cannot be served together with a method, and new releases add more; so each field
is decided here, and nothing else is taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation.configuration_utils import ALL_STATIC_CACHE_IMPLEMENTATIONS

from rag_middle.attention import vocabulary_size
from rag_middle.errors import RagMiddleError, UnsupportedGenerationError
from rag_middle.options import GenerationOptions

#: Which tokens are possible, where a text ends, and how hypotheses of a beam search compare.
TAKEN = frozenset(
    "eos_token_id pad_token_id bos_token_id stop_strings min_new_tokens suppress_tokens "
    "begin_suppress_tokens bad_words_ids sequence_bias no_repeat_ngram_size "
    "exponential_decay_length_penalty remove_invalid_values renormalize_logits length_penalty "
    "early_stopping cache_implementation cache_config".split()
)

#: What replaces these is said by `GenerationOptions`, or by this package.
NOT_USED = frozenset(
    # how the next token is chosen from the distribution
    "do_sample temperature top_k top_p min_p top_h typical_p epsilon_cutoff eta_cutoff num_beams "
    "repetition_penalty num_return_sequences num_beam_groups diversity_penalty penalty_alpha "
    "dola_layers "
    # lengths: these three count the prompt or an end that nobody wrote
    "max_new_tokens max_length min_length forced_eos_token_id "
    # of encoder-decoder models; on others the padding of a batch would count as its prompt
    "encoder_repetition_penalty encoder_no_repeat_ngram_size forced_bos_token_id "
    "decoder_start_token_id "
    # the same tokens sooner or in less memory: methods need the whole prompt in one eager pass
    "use_cache max_cache_len use_mtp is_assistant num_assistant_tokens "
    "num_assistant_tokens_schedule assistant_confidence_threshold prompt_lookup_num_tokens "
    "max_matching_ngram_size assistant_early_exit assistant_lookbehind target_lookbehind "
    "assistant_ensemble_weight speculation_type compile_config disable_compile "
    "continuous_batching_config prefill_chunk_size low_memory "
    # what generate() returns
    "output_attentions output_hidden_states output_scores output_logits return_dict_in_generate "
    "transformers_version".split()
)

#: What would change the text as its author wants it, and cannot be had here: why, what to do.
REFUSED = {
    "guidance_scale": "it mixes in a second pass without the prompt, which no method knows. Leave "
    "it out",
    "watermarking_config": "a watermark would be lost where tokens are drawn. Leave it out",
    "token_healing": "it rewrites the end of the prompt. Leave it out",
    "constraints": "beams under constraints are not offered. Leave them out",
    "force_words_ids": "beams under constraints are not offered. Leave them out",
    "max_time": "a text that the clock ends differs from run to run. To end one early, pass "
    "cancel=, an event that a timer sets",
}


class _RequestConfig(GenerationConfig):
    """A generation config that transformers does not fill up from the model's own."""

    def update(
        self, defaults_only: bool = False, allow_custom_entries: bool = False, **kwargs: Any
    ) -> dict[str, Any]:
        """As the base class, but for the model's own fields, which come with custom entries."""
        if allow_custom_entries:
            return {}
        unused: dict[str, Any] = super().update(  # type: ignore[no-untyped-call]
            defaults_only=defaults_only, **kwargs
        )
        return unused


def check_own_config(model: PreTrainedModel) -> None:
    """Refuse what the model's own generation config asks for and nobody can have here.

    Raises:
        UnsupportedGenerationError: a field that is refused, or that this version does not know.
    """
    standard = vars(GenerationConfig())
    for name, value in vars(model.generation_config).items():
        if name.startswith("_") or name not in standard or name in TAKEN | NOT_USED:
            continue
        if not value or value == standard[name] or (name == "guidance_scale" and value == 1):
            continue
        reason = REFUSED.get(name, "this version does not know what it does. Leave it out")
        raise UnsupportedGenerationError(
            f"The model's generation config says {name}={value!r}, which cannot be served: "
            f"{reason} (model.generation_config.{name} = None, or in generation_config.json)."
        )


def check_token_ids(model: PreTrainedModel, options: GenerationOptions) -> None:
    """Refuse token ids that the model does not know.

    Raises:
        UnsupportedGenerationError: one beyond its vocabulary.
    """
    rows = vocabulary_size(model)
    ends = options.eos_token_id
    for name, ids in (
        ("eos_token_id", ends if isinstance(ends, Sequence) else [ends]),
        ("pad_token_id", [options.pad_token_id]),
    ):
        for token in ids:
            if token is not None and token >= rows:
                raise UnsupportedGenerationError(
                    f"{name} must be below {rows}, the size of the model's vocabulary, got "
                    f"{token}.",
                )


def no_repeat_ngram_size(model: PreTrainedModel, options: GenerationOptions) -> int:
    """Length of sequences of tokens that may come once only; 0: any may come again."""
    own: Any = model.generation_config
    if options.no_repeat_ngram_size is None:
        return own.no_repeat_ngram_size or 0
    return options.no_repeat_ngram_size


def own_stop_strings(model: PreTrainedModel) -> tuple[str, ...]:
    """Strings that end every text of this model, as its end tokens do."""
    own: Any = model.generation_config.stop_strings or ()
    return (own,) if isinstance(own, str) else tuple(own)


def request_config(
    model: PreTrainedModel,
    options: GenerationOptions,
    width: int,
    pad: int,
    ends: Mapping[int, str | None],
) -> GenerationConfig:
    """A new config for a request, whole: nothing is left for transformers to fill in.

    Drawing is done by a `Sampler`: to transformers it is greedy.

    Args:
        model: whose own config has a say.
        options: of the request.
        width: columns of the prompts.
        pad: token to fill with.
        ends: tokens that end a text.

    Raises:
        UnsupportedGenerationError: transformers refuses what the model's own config says.
    """
    own: Any = model.generation_config
    # Stop strings are looked for elsewhere, and sequences that repeat are told apart elsewhere:
    # where a method combines branches, of what comes from all of them.
    elsewhere = {"stop_strings", "no_repeat_ngram_size"}
    taken = {name: getattr(own, name, None) for name in TAKEN - elsewhere}
    if options.num_beams == 1:
        del taken["length_penalty"], taken["early_stopping"]  # which would draw a remark
    if taken["min_new_tokens"] is not None:
        taken["min_new_tokens"] = min(taken["min_new_tokens"], options.max_new_tokens)
    if own.cache_implementation in ALL_STATIC_CACHE_IMPLEMENTATIONS:
        # Made for compiled models, which methods cannot reach; sliding layers drop documents.
        taken |= {"cache_implementation": "dynamic", "cache_config": None}
    standard = vars(GenerationConfig())
    custom = {
        name: value
        for name, value in vars(own).items()
        if name not in standard and not name.startswith("_")
    }
    return _RequestConfig(  # type: ignore[no-untyped-call]
        **custom,
        **{
            **taken,
            "max_length": width + options.max_new_tokens,
            "disable_compile": True,
            "do_sample": False,
            "num_beams": options.num_beams,
            "num_return_sequences": 1,
            "repetition_penalty": float(options.repetition_penalty),
            "use_cache": True,
            "return_dict_in_generate": False,
            "pad_token_id": pad,
            "eos_token_id": sorted(ends) or None,
        },
    )


def explained(model: PreTrainedModel, error: Exception) -> Exception:
    """What to raise where generation failed before the first token: `error`, or one that says more.

    Args:
        model: whose own generation config may be to blame.
        error: that transformers raised.
    """
    own = vars(model.generation_config)
    settings = [
        f"{name}={own[name]!r}" for name in sorted(TAKEN) if own.get(name) not in (None, False)
    ]
    if isinstance(error, RagMiddleError) or not settings:
        return error
    return UnsupportedGenerationError(
        f"transformers cannot generate with this model and what its generation config says "
        f"({', '.join(settings)}): {error} Correct model.generation_config, or set what is wrong "
        "to None."
    )


def pad_token_id(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, chosen: int | None
) -> int:
    """A token to fill with; it is masked, so any one the model knows will do."""
    rows = vocabulary_size(model)
    own: Any = model.generation_config
    for candidate in (chosen, tokenizer.pad_token_id, own.pad_token_id, tokenizer.eos_token_id):
        if isinstance(candidate, int) and 0 <= candidate < rows:
            return candidate
    return 0


def end_tokens(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    stops: Sequence[str],
    chosen: int | Sequence[int] | None,
) -> dict[int, str | None]:
    """Tokens that end a text: those chosen, else the model's, else the tokenizer's; and stop
    strings that are tokens.

    Special tokens never show in the text, so there a stop string would not be found.
    """
    own: Any = model.generation_config
    candidates = (chosen, own.eos_token_id, tokenizer.eos_token_id)
    ids = next((ids for ids in candidates if ids is not None), ())
    ends: dict[int, str | None] = dict.fromkeys([ids] if isinstance(ids, int) else ids)
    for token_id, token in tokenizer.added_tokens_decoder.items():
        if token.special and str(token.content) in stops:
            ends[token_id] = str(token.content)
    return ends
