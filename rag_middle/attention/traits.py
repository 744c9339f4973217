"""What a model's attention layers are like, as far as the methods care.

Nothing here is looked up by family name: `rag_middle.attention.probe` runs the model on a few
tokens and reads these facts off its behaviour.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rag_middle.errors import UnsupportedArchitectureError

if TYPE_CHECKING:  # methods are planned from traits, and are listed without PyTorch
    import torch
    from torch import Tensor
    from transformers import PreTrainedModel

    from rag_middle.ops.rope import RotaryStyle


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTraits:
    """One softmax-attention layer.

    Attributes:
        layer: index in the decoder.
        heads: query heads ``h``.
        kv_heads: key/value heads ``g``.
        head_size: ``d``.
        layer_type: the name under which the model keeps this layer's rotary frequencies apart, or
            the number of its rotary module, where the model has several.
        uses_rope: queries and keys are rotated (false for NoPE layers).
        rotary: how they are rotated; ``None`` where no known pairing explains the model's output.
        norms_after_rope: attributes of the attention module that normalise rotated queries and
            keys, so that un-rotated ones must skip them and be normalised later.
        affine_projections: queries, keys and values depend on the hidden state affinely, in the
            same way wherever a token stands, so a change of one channel is a rank-one update.
        rotates_by_table: rotary tables with further axes in front rotate queries and keys once by
            each of them, which any broadcasting rotation of whole heads does.
        value_projection: name of the submodule that makes the values, and nothing else, of hidden
            states, where the module makes queries and keys of them besides and no more (no gate);
            ``None`` where there is none.
        sliding_window: tokens a query can see back, itself included; ``None`` for all.
        attention_chunk: tokens of a chunk, where a query sees its own chunk only; else ``None``.
        softcap: scores are squashed to ``softcap * tanh(score / softcap)``.
        sinks: the softmax has a learned extra term per head.
        score_scale: factor on query-key products.
        mixes_besides: tokens reach later ones past the softmax attention, too: by a state-space
            mixer or a convolution beside it.
        scales_by_position: queries depend on the ``position_ids`` that the module is given, too:
            some models scale them so in long prompts.
    """

    layer: int
    heads: int
    kv_heads: int
    head_size: int
    layer_type: str | int | None
    uses_rope: bool
    rotary: RotaryStyle | None
    norms_after_rope: tuple[str, ...]
    affine_projections: bool
    rotates_by_table: bool
    value_projection: str | None
    sliding_window: int | None
    attention_chunk: int | None
    softcap: float | None
    sinks: bool
    score_scale: float
    mixes_besides: bool = False
    scales_by_position: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTraits:
    """A decoder as the methods see it.

    Attributes:
        model_type: ``config.model_type``.
        num_layers: decoder layers, attention or not.
        hidden_size: size of the residual stream.
        rope_type: ``default``, ``linear``, ``dynamic``, ``yarn``, ``llama3``, ``longrope``, or
            ``None`` for models without rotary embedding.
        layers: softmax-attention layers that go through transformers' attention interface, by
            index.
        obstacle: why the attention layers cannot be reached; empty where they can.
        context_window: most tokens the model was made for, see `context_window`; ``None`` if it
            does not say.
    """

    model_type: str
    num_layers: int
    hidden_size: int
    rope_type: str | None
    layers: dict[int, LayerTraits]
    obstacle: str = ""
    context_window: int | None = None

    @property
    def mixed(self) -> bool:
        """Some decoder layers read in order: by linear attention, state spaces, convolutions."""
        return bool(self.layers) and self.reading_in_order > 0

    @property
    def reading_in_order(self) -> int:
        """Decoder layers in which tokens reach others past softmax attention, or have none."""
        besides = sum(layer.mixes_besides for layer in self.layers.values())
        return self.num_layers - len(self.layers) + besides

    def require_layers(self, asked_by: str) -> None:
        """Raise `UnsupportedArchitectureError` where no attention layer can be reached."""
        if self.obstacle:
            raise self.unsupported(
                f"{asked_by} cannot be applied: {self.obstacle}.",
                "Use a model with rotary positions, such as a LLaMA, Qwen or Mistral.",
            )

    def unsupported(self, reason: str, alternative: str) -> UnsupportedArchitectureError:
        """The error to raise for this model."""
        return UnsupportedArchitectureError(self.model_type, reason=reason, alternative=alternative)


#: RoPE scalings under which ``max_position_embeddings`` may be the length before scaling. Under
#: llama3 and longrope it is the length after it: llama 3.1 says 131072 and factor 8 of 8192.
_LENGTHENING = ("linear", "dynamic", "yarn", "proportional")


def context_window(config: Any) -> int | None:
    """Tokens that a decoder was made for, prompt and answer together; None if it does not say.

    ``max_position_embeddings``, or what RoPE scaling (``config.rope_parameters``) makes of it:
    `factor` times the length before scaling, which is ``original_max_position_embeddings`` where
    that is stated, and never less than ``max_position_embeddings``. Where layer types have
    parameters of their own, the layers that reach least far decide: Gemma 3 scales some of its
    layers and states the length after it. A sliding window shortens nothing, and the tokenizer's
    ``model_max_length`` is not asked: many state the length of another model.

    Args:
        config: of the decoder, not of a larger model that it is part of.
    """
    # MPT has learned nothing beyond its length either, but a name of its own for it.
    stated = getattr(config, "max_position_embeddings", None) or getattr(
        config, "max_seq_len", None
    )
    if not isinstance(stated, int):
        return None
    parameters = getattr(config, "rope_parameters", None) or {}
    of_layer_types = [of_type for of_type in parameters.values() if isinstance(of_type, dict)]
    return min(_scaled(stated, of_type) for of_type in of_layer_types or [parameters])


def _scaled(stated: int, rope: dict[str, Any]) -> int:
    factor = rope.get("factor")
    if rope.get("rope_type") not in _LENGTHENING or not isinstance(factor, int | float):
        return stated
    unscaled = rope.get("original_max_position_embeddings") or stated
    return max(stated, int(unscaled * factor))


def input_device(model: PreTrainedModel) -> torch.device:
    """Where token ids go in."""
    import torch

    weight: Tensor = model.get_input_embeddings().weight  # type: ignore[assignment]
    if weight.device.type == "meta":  # offloaded: comes for the call to where it is computed
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return weight.device


def vocabulary_size(model: PreTrainedModel) -> int:
    """Tokens the model has an embedding for."""
    weight: Tensor = model.get_input_embeddings().weight  # type: ignore[assignment]
    return weight.shape[0]


def puts_virtual_tokens(model: PreTrainedModel) -> bool:
    """Whether an adapter (PEFT) puts tokens before a prompt, or before the padding of its row."""
    return bool(getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False))


def waits_for_invocation(model: PreTrainedModel) -> bool:
    """Whether an adapter (activated LoRA) acts from certain tokens on, sought in every pass."""
    return bool(
        getattr(getattr(model, "active_peft_config", None), "alora_invocation_tokens", None)
    )
