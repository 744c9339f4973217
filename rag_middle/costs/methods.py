"""The work of a model under a method, from the model's config alone."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache, PretrainedConfig, PreTrainedModel

from rag_middle.attention import ModelTraits, applied, assume_traits, model_traits
from rag_middle.costs.counting import Work, counted
from rag_middle.generation.prompts import arranged, branched
from rag_middle.methods import Method
from rag_middle.tokens import TokenizedPrompt

__all__ = ["MethodWork", "Passes", "count_method", "prompt_of", "without_numbers"]

#: Decode steps before the one that is counted: the first ones make tables that later ones share.
_SETTLED = 2


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

    Args:
        config: of a causal language model with rotary positions.

    Raises:
        UnsupportedArchitectureError: its layers cannot be told without running it at its size.
    """
    config = _text_config(config)
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            config, attn_implementation="sdpa", dtype=torch.bfloat16
        )
    return assume_traits(model.eval(), _traits(config))


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
        method: as it would run.
        prompt: of which only the layout matters.
    """
    runner = Passes(model_traits(model), prompt)
    branches = branched(arranged(prompt, method, runner), method, runner)
    rows, columns = len(branches), max(len(branch.input_ids) for branch in branches)
    ids = torch.zeros(rows, columns, dtype=torch.long, device="meta")
    cache = DynamicCache()
    with applied(model, method, branches):
        with counted() as prefill:
            model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        layers: list[Any] = cache.layers
        cache_bytes = sum(layer.keys.nbytes + layer.values.nbytes for layer in layers)
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


def _text_config(config: PretrainedConfig) -> Any:
    text: Any = copy.deepcopy(config.get_text_config(decoder=True))
    # Variants that look at the largest position ask the device for it, and cost the same.
    rope = getattr(text, "rope_parameters", None) or {}
    if rope.get("rope_type") in ("dynamic", "longrope"):
        text.rope_parameters = {"rope_type": "default", "rope_theta": rope["rope_theta"]}
    return text


def _traits(config: Any) -> ModelTraits:
    """What the layers are like: found out on a narrow model with numbers."""
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head_size = getattr(config, "head_dim", None) or config.hidden_size // heads
    narrow = copy.deepcopy(config)
    settings = {
        "head_dim": head_size,
        "hidden_size": 2 * head_size,
        "intermediate_size": 64,
        "num_attention_heads": 2,
        "num_key_value_heads": 1 if kv_heads < heads else 2,
        "vocab_size": 64,
        "pad_token_id": None,
    }
    for name, value in settings.items():
        setattr(narrow, name, value)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(narrow, attn_implementation="sdpa").eval()
    traits = model_traits(model)
    layers = {
        index: replace(layer, heads=heads, kv_heads=kv_heads)
        for index, layer in traits.layers.items()
    }
    return replace(traits, layers=layers, hidden_size=config.hidden_size)
