"""Tiny random models whose attention is peaky enough for a wrong position to show.

A freshly initialised model has weights near zero: attention is uniform, norms are ones and biases
zeros, so most mistakes leave the logits where they were. `scramble` draws every weight again.
"""

import zlib
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    LlamaConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen2VLTextConfig,
)

from rag_middle.generation import RagMiddleModel

VOCABULARY = 211
HIDDEN = 64
HEADS = 4
KEY_VALUE_HEADS = 2
HEAD_SIZE = HIDDEN // HEADS
POSITIONS = 512

# Settings that count channels of the hidden state or of a head, by the names of all families.
_WIDTHS = (
    *("hidden_size", "d_model", "n_embd", "word_embed_proj_dim"),
    *("head_dim", "query_pre_attn_scalar"),
)

# Parameters with a range of their own (decays of linear attention, activation shapes).
_KEPT = ("A_log", "dt_bias", "alpha_p", "alpha_n")


def tiny(
    config_class: type[PretrainedConfig], *, times: int = 1, **overrides: Any
) -> PretrainedConfig:
    """A config of the usual size; `overrides` replace or add settings.

    Hidden states and heads, and nothing else, are `times` as wide.
    """
    settings: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_VALUE_HEADS,
        "head_dim": HEAD_SIZE,
        "max_position_embeddings": POSITIONS,
        **special_tokens(),
        **overrides,
    }
    settings |= {name: times * settings[name] for name in _WIDTHS if settings.get(name, ...) != ...}
    if "rope_parameters" in settings:  # longrope has a factor for every pair of a head's channels
        settings["rope_parameters"] = {
            name: times * value if isinstance(value, list) else value
            for name, value in settings["rope_parameters"].items()
        }
    return config_class(**{name: value for name, value in settings.items() if value is not ...})


def special_tokens() -> dict[str, int | None]:
    """No end token, so that generation runs to its limit; 0 pads."""
    return {"pad_token_id": 0, "bos_token_id": None, "eos_token_id": None}


def build(name: str, config: PretrainedConfig, attn_implementation: str) -> PreTrainedModel:
    """A float32 model in eval mode. The same `name` and `config` give the same weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            config, attn_implementation=attn_implementation, dtype=torch.float32
        )
    # Wider matrices have smaller weights, or scores would grow with the width.
    scramble(model, seed=zlib.crc32(name.encode()), std=0.18 * (HIDDEN / config.hidden_size) ** 0.5)
    model.generation_config = GenerationConfig(pad_token_id=0, do_sample=False)
    model.eval().requires_grad_(False)
    return model


def speaking(name: str, tokenizer: PreTrainedTokenizerBase, **overrides: Any) -> RagMiddleModel:
    """A LLaMA with this tokenizer."""
    config = tiny(LlamaConfig, vocab_size=len(tokenizer), **overrides)
    return RagMiddleModel(build(name, config, "sdpa"), tokenizer)


def saved(model: RagMiddleModel, folder: Path) -> Path:
    """The folder, with the model and its tokenizer in it."""
    model.model.save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)
    return folder


def seeing_pictures() -> Any:
    """A model that sees pictures, whose tokens stand on three axes, of text on each the same."""
    rope = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 3, 3]}
    text = tiny(Qwen2VLTextConfig, rope_parameters=rope).to_dict()
    config = Qwen2VLConfig(text_config=text, vision_config={"depth": 1, "hidden_size": 64})
    model = Qwen2VLForConditionalGeneration(config).eval().requires_grad_(False)
    scramble(model, seed=1)
    return model


@torch.no_grad()
def scramble(model: PreTrainedModel, seed: int, std: float = 0.18) -> None:
    """Draw all weights again, norms and biases too; matrices with this standard deviation."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if name.rsplit(".", 1)[-1] in _KEPT:
            continue
        is_norm = any(part in name for part in ("norm", "ln_")) and not name.endswith("bias")
        if is_norm:
            # Some norms multiply by `1 + weight` and start at zero: keep their centre.
            parameter.add_(torch.rand(parameter.shape, generator=generator) - 0.5)
        elif name.endswith("sinks"):
            parameter.normal_(generator=generator)
        elif parameter.ndim < 2 or name.endswith("bias"):
            parameter.normal_(std=0.1, generator=generator)
        elif "embed" in name or "wte" in name or "wpe" in name:
            parameter.normal_(std=0.5, generator=generator)
        else:
            parameter.normal_(std=std, generator=generator)
