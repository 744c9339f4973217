"""The work of a model under a method, from the model's config alone."""

from __future__ import annotations

import copy
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoModelForCausalLM,
    DynamicCache,
    PretrainedConfig,
    PreTrainedModel,
)

from rag_middle.attention import (
    ModelTraits,
    applied,
    assume_traits,
    context_window,
    model_traits,
)
from rag_middle.costs.counting import Work, counted
from rag_middle.errors import UnsupportedArchitectureError
from rag_middle.generation.prompts import arranged, branched
from rag_middle.methods import Method
from rag_middle.tokens import TokenizedPrompt

__all__ = ["MethodWork", "Passes", "count_method", "prompt_of", "without_numbers"]

#: Decode steps before the one that is counted: the first ones make tables that later ones share.
_SETTLED = 2
#: Names of the width of an MLP, beside those that end with ``intermediate_size``.
_MLP_WIDTHS = ("ffn_dim", "ffn_hidden_size", "n_inner", "intermediate_size_mlp")
#: Numbers of a narrow model that is built to see what its layers are like: 2 GB.
_MOST_PROBED = 500_000_000


@dataclass(frozen=True, slots=True)
class MethodWork:
    """Work of one request.

    Attributes:
        prefill: the whole prompt, every branch of the method in one batch.
        decode: one token after it.
        passes: prefills of the unmodified model before it reads the prompt, in prompts.
        cache_bytes: of the KV cache after the prompt.
        layers: of the model.
    """

    prefill: Work
    decode: Work
    passes: float
    cache_bytes: int
    layers: int


def without_numbers(config: PretrainedConfig) -> PreTrainedModel:
    """A model on the ``meta`` device, in bfloat16, whose attention layers are known.

    Raises:
        UnsupportedArchitectureError: no decoder with attention, or one whose layers cannot be told
            from a narrow model.
    """
    _check_decoder(config)
    window = context_window(config.get_text_config(decoder=True))
    config = _text_config(config)
    with torch.device("meta"):  # with sdpa, as it is loaded, where the family has that
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    return assume_traits(model.eval(), replace(_traits(config), context_window=window))


def prompt_of(tokens: int, documents: int, *, around: int = 40) -> TokenizedPrompt:
    """A prompt of `tokens`: equally long documents between `around` tokens and the rest.

    Raises:
        ValueError: there is not a token for every document.
    """
    length = (tokens - 2 * around) // documents if documents else 0
    if documents and length < 1:
        raise ValueError(f"{tokens} tokens do not hold {documents} documents.")
    return TokenizedPrompt.assembled(
        prefix=[1] * around,
        documents=[[2 + index] * length for index in range(documents)],
        suffix=[1] * (tokens - around - documents * length),
        document_ids=[None] * documents,
        scores=[1 / (1 + index) for index in range(documents)],
    )


def count_method(model: PreTrainedModel, method: Method, prompt: TokenizedPrompt) -> MethodWork:
    """Count a prefill and a decode step.

    Args:
        model: from `without_numbers`.
        prompt: of which only the layout matters.
    """
    runner = Passes(model_traits(model), prompt)
    branches = branched(arranged(method.rewrite(prompt), method, runner), method, runner)
    rows, columns = len(branches), max(len(branch.input_ids) for branch in branches)
    ids = torch.zeros(rows, columns, dtype=torch.long, device="meta")
    cache = DynamicCache(config=model.config)
    with applied(model, method, branches, prepared=True):
        with counted() as prefill:
            model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        # Keys and values; of linear attention, the states that stand in their place.
        states = tree_leaves([vars(layer) for layer in cache.layers])
        cache_bytes = sum(
            x.nbytes for x in states if isinstance(x, Tensor) and x.is_floating_point()
        )
        for _ in range(_SETTLED + 1):
            with counted() as decode:
                model(input_ids=ids[:, :1], past_key_values=cache, use_cache=True)
    depth = model.config.num_hidden_layers
    return MethodWork(prefill, decode, runner.prompts, cache_bytes, depth)


class Passes:
    """What a method may ask of the model before it reads the prompt: counted, and answered."""

    def __init__(self, traits: ModelTraits, prompt: TokenizedPrompt) -> None:
        self.traits = traits
        self._prompt = prompt
        self.prompts = 0.0

    def _read(self, prompt: TokenizedPrompt) -> None:
        self.prompts += len(prompt.input_ids) / len(self._prompt.input_ids)

    def last_token_attention(self, prompt: TokenizedPrompt) -> Tensor:
        self._read(prompt)
        # The first documents most: no order that puts them last is ever the one asked about.
        weights = torch.linspace(1, 0, len(prompt.input_ids))
        return weights.expand(len(self.traits.layers), 1, -1)

    def logits(self, prompt: TokenizedPrompt, method: Method | None = None) -> Tensor:
        self._read(prompt)
        return torch.linspace(0, 1, 256)

    def token_ids(self, text: str) -> tuple[int, ...]:
        return tuple(text.encode("ascii", "replace"))


def _check_decoder(config: PretrainedConfig) -> None:
    text = config.get_text_config(decoder=True)
    if config.is_encoder_decoder:
        reason = "it is an encoder-decoder, and methods work on decoders."
    elif type(text) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        reason = "transformers has no causal language model of this type."
    elif not getattr(text, "num_attention_heads", None):
        reason = (
            "it is a state-space or recurrent model: without attention there is no KV cache, and "
            "nothing that a method could change."
        )
    elif any(name.startswith(("mamba_", "ssm_")) for name in vars(text)):
        reason = (
            "some of its layers are state-space layers, whose kernels cannot be counted: what runs "
            "without them goes token by token."
        )
    else:
        return
    raise UnsupportedArchitectureError(
        config.model_type,
        reason=reason,
        alternative="Plan for a decoder with attention, such as a LLaMA, Qwen or Mistral.",
    )


def _text_config(config: PretrainedConfig) -> Any:
    text: Any = copy.deepcopy(config.get_text_config(decoder=True))
    # Variants that look at the largest position ask the device for it, and cost the same.
    rope = getattr(text, "rope_parameters", None) or {}
    if rope.get("rope_type") in ("dynamic", "longrope"):
        text.rope_parameters = {"rope_type": "default", "rope_theta": rope["rope_theta"]}
    text.pad_token_id = None  # a model that has one looks for it among the tokens
    return text


def _traits(config: Any) -> ModelTraits:
    """What the layers are like: found out on a narrow model with numbers."""
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head_size = getattr(config, "head_dim", None) or config.hidden_size // heads
    narrow = copy.deepcopy(config)
    settings = {
        "hidden_size": 2 * head_size,
        "intermediate_size": 64,
        "num_attention_heads": 2,
        "num_key_value_heads": 1 if kv_heads < heads else 2,
        "num_kv_heads": 1 if (getattr(config, "num_kv_heads", None) or heads) < heads else 2,
        "head_dim": head_size,
        "vocab_size": 64,
    }
    # Traits are of attention: what is wide beside it would only take memory.
    wide = (*_MLP_WIDTHS, *(name for name in vars(narrow) if name.endswith("intermediate_size")))
    settings |= {name: 64 for name in wide if isinstance(getattr(narrow, name, None), int)}
    for name, value in settings.items():
        with suppress(AttributeError):  # some compute theirs from the others
            setattr(narrow, name, value)
    with torch.device("meta"):
        numbers = AutoModelForCausalLM.from_config(narrow).num_parameters()
    if numbers > _MOST_PROBED:
        raise UnsupportedArchitectureError(
            config.model_type,
            reason=f"a narrow model with its layers still has {numbers / 1e9:.1f} billion numbers, "
            "so what they are like is not found out.",
            alternative="Plan for a model of its size with fewer layers or experts.",
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(narrow).eval()
    traits = model_traits(model)
    layers = {
        index: replace(layer, heads=heads, kv_heads=kv_heads)
        for index, layer in traits.layers.items()
    }
    return replace(traits, layers=layers, hidden_size=config.hidden_size)
