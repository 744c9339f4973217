"""Where the last token of a prompt looks: attention mass of every document, by layer and head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from rag_middle.attention import (
    AttentionCall,
    Planner,
    applied,
    base_attention,
    config_views,
    in_eval_mode,
    model_traits,
    modules_by_layer,
    turn,
    use_kernels,
)
from rag_middle.attention.seam import AttentionHandler, ConfigView, handle_attention, handler_of
from rag_middle.documents import ContextPrompt
from rag_middle.errors import ConfigError, UnsupportedGenerationError
from rag_middle.evaluation.plots import new_figure
from rag_middle.generation import RagMiddleModel
from rag_middle.generation.prompts import MethodLike
from rag_middle.layout import PromptLayout
from rag_middle.methods import Method, resolve_method
from rag_middle.tokens import TokenizedPrompt

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "DocumentAttention",
    "document_attention",
    "draw_masses",
    "plot_document_attention",
    "plot_head_attention",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentAttention:
    """Attention of the last prompt token, averaged over prompts.

    Attributes:
        layers: 0-based; layers without softmax attention are not among them.
        heads: 0-based.
        by_head: mass of the prompt's first token (the usual attention sink), of the rest of the
            prefix, of each document in the prompt's own order, and of what follows the documents,
            `[layers, h, 2 + D + 1]`.
    """

    layers: tuple[int, ...]
    heads: tuple[int, ...]
    by_head: NDArray[np.float64]

    @property
    def documents(self) -> NDArray[np.float64]:
        """Mass of each document, averaged over heads, `[layers, D]`."""
        return self._averaged[:, 2:-1]

    @property
    def first_token(self) -> NDArray[np.float64]:
        """Mass of the first token, averaged over heads, `[layers]`."""
        return self._averaged[:, 0]

    @property
    def prefix(self) -> NDArray[np.float64]:
        """Mass of the rest of the prefix, averaged over heads, `[layers]`."""
        return self._averaged[:, 1]

    @property
    def suffix(self) -> NDArray[np.float64]:
        """Mass of what follows the documents, averaged over heads, `[layers]`."""
        return self._averaged[:, -1]

    @property
    def _averaged(self) -> NDArray[np.float64]:
        averaged: NDArray[np.float64] = self.by_head.mean(axis=1)
        return averaged

    def chosen(
        self, layers: Sequence[int] | None = None, heads: Sequence[int] | None = None
    ) -> DocumentAttention:
        """These layers and heads only; None for all of them.

        Raises:
            ConfigError: there are no such layers or heads.
        """
        rows = _indices("layer", self.layers if layers is None else layers, self.layers)
        columns = _indices("head", self.heads if heads is None else heads, self.heads)
        return DocumentAttention(
            layers=tuple(self.layers[row] for row in rows),
            heads=tuple(self.heads[column] for column in columns),
            by_head=self.by_head[rows][:, columns],
        )


def _indices(kind: str, wanted: Sequence[int], there: Sequence[int]) -> list[int]:
    if not wanted or not set(wanted) <= set(there):
        raise ConfigError(
            f"Attention can be seen in {kind}s {there[0]} to {there[-1]}; got {list(wanted)}."
        )
    return [there.index(index) for index in wanted]


def document_attention(
    model: RagMiddleModel,
    prompts: ContextPrompt | Sequence[ContextPrompt],
    *,
    method: MethodLike = "none",
    template: Any = "auto",
) -> DocumentAttention:
    """Attention mass by layer, head and document, averaged over prompts.

    The masses of a head sum to one, except in layers with a learned sink and under methods that
    scale weights without normalising them again (SIW).

    Args:
        model: its own method is not used.
        prompts: with documents, the same number in each.
        method: that the model runs under; the unmodified model by default.

    Raises:
        ConfigError: a prompt has no documents, or another number of them than the first;
            or the method combines several forward passes.
        UnsupportedArchitectureError: the model's attention cannot be reached, or the model cannot
            take the method.
    """
    prompts = [prompts] if isinstance(prompts, ContextPrompt) else list(prompts)
    counts = {len(prompt.documents) for prompt in prompts}
    if len(counts) != 1 or 0 in counts:
        raise ConfigError(
            "An attention view needs documents in every prompt, the same number in each: pass "
            f"ContextPrompt(documents=[...]). Numbers of documents: {sorted(counts)}."
        )
    chosen = resolve_method(method)
    if chosen.combines:
        raise ConfigError(
            f"{chosen.name} combines several forward passes, each with attention of its own: look "
            "at the model under one of them."
        )
    masses = np.mean([_masses(model, prompt, chosen, template) for prompt in prompts], axis=0)
    return DocumentAttention(
        layers=tuple(sorted(model_traits(model.model).layers)),
        heads=tuple(range(masses.shape[1])),
        by_head=masses,
    )


def _masses(
    model: RagMiddleModel, prompt: ContextPrompt, method: Method, template: Any
) -> NDArray[np.float64]:
    tokens = model.encode(prompt, method="none", template=template)
    numbers = tuple(map(str, range(len(tokens.layout.documents))))
    tokens = model.encode(replace(tokens, document_ids=numbers), method=method)
    network = model.model
    with turn(network), in_eval_mode(network), use_kernels(model.kernels):
        masses = last_token_masses(network, method, tokens, _segments(tokens.layout)).double()
    # A method may have put the documents into another order.
    order = sorted(
        range(len(numbers)), key=lambda position: int(tokens.document_ids[position] or 0)
    )
    columns = [0, 1, *(2 + position for position in order), masses.shape[2] - 1]
    return masses[:, :, columns].numpy()


@torch.no_grad()
def last_token_masses(
    model: PreTrainedModel, method: Planner, prompt: TokenizedPrompt, segments: Tensor
) -> Tensor:
    """What the last token's attention puts on segments of a prompt, under a method.

    An attention output is linear in the values, whatever gave the weights. So the prompt goes
    through the model in several rows of a batch, all with the same queries and keys. The first row
    keeps its values; its outputs go on to the next layer, in every row. The second has zeros for
    values, and its outputs are subtracted from those below: a method may add to values. The values
    of all others say to which segment a token belongs, so that their outputs are the masses.

    Args:
        model: left as it is found.
        method: that the model runs under.
        prompt: in the method's order of documents.
        segments: `[l, S]`, one where a token belongs to a segment and zero elsewhere.

    Returns:
        `[layers, h, S]` in float32 on the CPU, layers with softmax attention only. Weights that a
        method scales without normalising them again do not sum to one.

    Raises:
        As `applied`.
        UnsupportedArchitectureError: the attention layers cannot be reached.
        UnsupportedGenerationError: the method reads tokens a second time.
    """
    traits = model_traits(model)
    traits.require_layers("The attention view")
    modules = modules_by_layer(model, traits)
    # Half: latent attention has values that are narrower than its queries.
    narrowest = min(max(1, layer.head_size // 2) for layer in traits.layers.values())
    rows = 2 + ceil(segments.shape[1] / narrowest)
    ids = torch.tensor([prompt.input_ids], device=model.device).expand(rows, -1)
    with applied(model, method, [prompt], prepared=True):
        probes = {
            module: _Probe(handler_of(module), segments) for _, module in sorted(modules.items())
        }
        unseen = [module for module in probes if not isinstance(module.config, ConfigView)]
        with config_views(unseen), handle_attention(probes):
            model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)
    return torch.stack([probe.masses.cpu() for probe in probes.values()])


class _Probe:
    """Puts values of its own into all rows but the first, and keeps what the last token gets."""

    def __init__(
        self,
        handler: AttentionHandler | None,
        segments: Tensor,
    ) -> None:
        self._attend = base_attention if handler is None else handler.attend
        self._segments = segments
        self.masses = torch.empty(0, device="cpu")

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor | None]:
        rows, _, tokens, width = call.value.shape
        if tokens != len(self._segments) or self.masses.numel():
            raise UnsupportedGenerationError(
                "This method reads tokens a second time, in a pass with attention of its own: look "
                "at the unmodified model, or at a method of one pass."
            )
        count = self._segments.shape[1]
        values = call.value.new_zeros(tokens, (rows - 2) * width)
        values[:, :count] = self._segments
        call.value = call.value.clone()
        call.value[1] = 0
        # [rows - 2, 1, l, dv]: every head has the same values.
        call.value[2:] = values.view(tokens, rows - 2, width).transpose(0, 1)[:, None]
        output, _ = self._attend(call)  # [rows, l, h, dv]
        last = output[1:, -1].float()
        self.masses = (last[1:] - last[0]).transpose(0, 1).flatten(1)[:, :count]
        return output[:1].expand_as(output), None


def _segments(layout: PromptLayout) -> torch.Tensor:
    """Which tokens belong to the first token, the prefix, each document, the suffix: `[l, S]`."""
    spans = ((0, 1), (1, layout.prefix_tokens), *layout.documents)
    segments = torch.zeros(layout.length, len(spans) + 1, device="cpu")
    for column, (start, end) in enumerate((*spans, (layout.suffix_start, layout.length))):
        segments[start:end, column] = 1
    return segments


def plot_document_attention(view: DocumentAttention) -> Figure:
    """A heat map: layers from top to bottom, documents from left to right; mean over heads.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    figure, [axes] = new_figure(height=max(2.6, 0.13 * len(view.layers) + 1.6))
    image = draw_masses(axes, view.documents, "Layer", view.layers)
    figure.colorbar(image, ax=axes, label="Attention of the last token, %")
    return figure


def plot_head_attention(view: DocumentAttention) -> Figure:
    """A heat map for each layer: heads from top to bottom, documents from left to right.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    figure, panels = new_figure(len(view.layers), height=max(2.2, 0.1 * len(view.heads) + 1.2))
    masses = view.by_head[:, :, 2:-1]
    for axes, layer, panel in zip(panels, view.layers, masses, strict=True):
        image = draw_masses(axes, panel, "Head", view.heads, most=masses.max())
        axes.set_title(f"Layer {layer}", fontsize="medium")
    figure.colorbar(image, ax=panels, label="Attention of the last token, %")
    return figure


def draw_masses(
    axes: Any,
    masses: NDArray[np.float64],
    label: str,
    names: Sequence[int],
    *,
    most: float | None = None,
) -> Any:
    """Masses `[rows, D]` as colours; `names` are those of the rows, `most` the brightest mass."""
    most = None if most is None else 100 * most
    image = axes.imshow(100 * masses, aspect="auto", cmap="viridis", vmin=0, vmax=most)
    axes.set_xticks(range(0, masses.shape[1], max(1, ceil(masses.shape[1] / 10))))
    rows = range(0, len(names), max(1, round(len(names) / 12)))
    axes.set_yticks(rows, [str(names[row]) for row in rows])
    axes.set_xlabel("Position of the document")
    axes.set_ylabel(label)
    return image
