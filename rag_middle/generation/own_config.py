"""Which fields of a model's own generation config (``generation_config.json``) count.

transformers fills every field that a request leaves open from there, and new releases add fields
that would change what is measured. So the fields in `TAKEN` are taken, and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation.configuration_utils import ALL_STATIC_CACHE_IMPLEMENTATIONS

from rag_middle.attention import vocabulary_size
from rag_middle.options import GenerationOptions

#: Which tokens are possible, where a text ends, and how hypotheses of a beam search compare.
TAKEN = frozenset(
    "eos_token_id pad_token_id bos_token_id stop_strings min_new_tokens suppress_tokens "
    "begin_suppress_tokens bad_words_ids sequence_bias no_repeat_ngram_size "
    "exponential_decay_length_penalty remove_invalid_values renormalize_logits length_penalty "
    "early_stopping cache_implementation cache_config".split()
)


class _RequestConfig(GenerationConfig):
    """A generation config that transformers does not fill up from the model's own."""

    def update(
        self, defaults_only: bool = False, allow_custom_entries: bool = False, **kwargs: Any
    ) -> dict[str, Any]:
        """As the base class, but for the model's own fields: those come with custom entries."""
        if allow_custom_entries:
            return {}
        unused: dict[str, Any] = super().update(  # type: ignore[no-untyped-call]
            defaults_only=defaults_only, **kwargs
        )
        return unused


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

    Drawing is done by a `Sampler`: to transformers it is greedy. The prompts have `width` columns.
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
    return _RequestConfig(  # type: ignore[no-untyped-call]
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
