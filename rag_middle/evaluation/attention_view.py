"""Where the last token of a prompt looks: attention mass of every document, by layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rag_middle.attention import LayerTraits, in_eval_mode, model_lock, model_traits
from rag_middle.attention.patch import modules_by_layer
from rag_middle.attention.probe import config_views
from rag_middle.attention.seam import AttentionCall, base_attention, handle_attention
from rag_middle.documents import ContextPrompt
from rag_middle.errors import EvaluationConfigError
from rag_middle.evaluation.plots import new_figure
from rag_middle.generation import RagMiddleModel

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["DocumentAttention", "document_attention", "plot_document_attention"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentAttention:
    """Attention of the last prompt token, averaged over heads.

    Attributes:
        layers: index of each row's layer; layers without softmax attention are not among them.
        documents: mass of each document, ``[layers, D]``.
        first_token: mass of the prompt's first token, ``[layers]``.
        prefix: mass of the rest of the prefix.
        suffix: mass of what follows the documents.
    """

    layers: tuple[int, ...]
    documents: NDArray[np.float64]
    first_token: NDArray[np.float64]
    prefix: NDArray[np.float64]
    suffix: NDArray[np.float64]


@torch.no_grad()
def document_attention(
    model: RagMiddleModel, prompt: ContextPrompt, *, template: Any = "auto"
) -> DocumentAttention:
    """Attention mass by layer and document, of the unmodified model.

    The masses of a row sum to one, except in layers with a learned sink.

    Args:
        model: its method is not used.
        prompt: with documents.
        template: as in generation.

    Raises:
        EvaluationConfigError: the prompt has no documents.
        UnsupportedArchitectureError: the model's attention cannot be reached.
    """
    inner = model.model
    traits = model_traits(inner)
    if not traits.layers:
        raise traits.unsupported(
            traits.obstacle or "its attention layers cannot be reached.",
            "There is no attention view of this model.",
        )
    tokens = model.encode(prompt, method="none", template=template)
    if not tokens.layout.documents:
        raise EvaluationConfigError(
            "An attention view needs documents in the prompt: pass ContextPrompt(documents=[...])."
        )
    modules = list(modules_by_layer(inner, traits).values())
    views = {module: _View(traits.layers[int(module.layer_idx)]) for module in modules}  # type: ignore[arg-type]
    ids = torch.tensor([tokens.input_ids], device=model.device)
    with (
        model_lock(inner),
        in_eval_mode(inner),
        config_views(modules),
        handle_attention(dict(views)),
    ):
        inner(input_ids=ids, use_cache=False)
    seen = sorted(views.values(), key=lambda view: view.traits.layer)
    rows = np.stack([view.weights for view in seen])  # [layers, l]
    layout = tokens.layout
    return DocumentAttention(
        layers=tuple(view.traits.layer for view in seen),
        documents=np.stack(
            [rows[:, start:end].sum(axis=1) for start, end in layout.documents], axis=1
        ),
        first_token=rows[:, 0],
        prefix=rows[:, 1 : layout.prefix_tokens].sum(axis=1),
        suffix=rows[:, layout.suffix_start :].sum(axis=1),
    )


class _View:
    """Lets a layer attend as it would, and remembers the last row of its weights."""

    def __init__(self, traits: LayerTraits) -> None:
        self.traits = traits
        self.weights: NDArray[np.float64] = np.zeros(0)

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor | None]:
        self.weights = _last_row(call, self.traits).mean(dim=0).double().cpu().numpy()
        return base_attention(call)


def _last_row(call: AttentionCall, traits: LayerTraits) -> Tensor:
    """Weights of the last query, ``[h, n]``, in float32."""
    query = call.query[0, :, -1].float()  # [h, d]
    key = call.key[0].float()  # [g, n, d]
    key = key.repeat_interleave(len(query) // len(key), dim=0)
    scores = torch.einsum("hd,hnd->hn", query, key) * traits.score_scale
    if traits.softcap is not None:
        scores = traits.softcap * torch.tanh(scores / traits.softcap)
    mask = call.mask
    if mask is not None and mask.ndim == 4:
        row = mask[0, :, -1, : scores.shape[1]]  # [1 or h, n]
        hidden = ~row if row.dtype == torch.bool else row < -1e4
        scores = scores.masked_fill(hidden, -torch.inf)
    elif traits.sliding_window is not None:
        scores[:, : max(0, scores.shape[1] - traits.sliding_window)] = -torch.inf
    sink = call.options.get("s_aux") if traits.sinks else None
    if sink is not None:
        scores = torch.cat([scores, sink.float().reshape(-1, 1)], dim=1)
        return scores.softmax(dim=-1)[:, :-1]
    return scores.softmax(dim=-1)


def plot_document_attention(view: DocumentAttention) -> Figure:
    """A heat map: layers from top to bottom, documents from left to right.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    drawn, [axes] = new_figure(height=max(2.6, 0.13 * len(view.layers) + 1.6))
    image = axes.imshow(100 * view.documents, aspect="auto", cmap="viridis", vmin=0)
    drawn.colorbar(image, ax=axes, label="Attention of the last token, %")
    count = view.documents.shape[1]
    every = max(1, round(count / 10))
    axes.set_xticks(range(0, count, every), [str(at + 1) for at in range(0, count, every)])
    step = max(1, round(len(view.layers) / 12))
    rows = range(0, len(view.layers), step)
    axes.set_yticks(rows, [str(view.layers[row]) for row in rows])
    axes.set_xlabel("Place of the document")
    axes.set_ylabel("Layer")
    return drawn
