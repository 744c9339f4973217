"""Where the last token of a prompt looks: attention mass of every document, by layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from rag_middle.attention import in_eval_mode, last_token_attention, model_lock, model_traits
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
        documents: mass of each document, `[layers, D]`.
        first_token: mass of the prompt's first token, the usual attention sink, `[layers]`.
        prefix: mass of the rest of the prefix, `[layers]`.
        suffix: mass of what follows the documents, `[layers]`.
    """

    layers: tuple[int, ...]
    documents: NDArray[np.float64]
    first_token: NDArray[np.float64]
    prefix: NDArray[np.float64]
    suffix: NDArray[np.float64]


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
    network = model.model
    tokens = model.encode(prompt, method="none", template=template)
    layout = tokens.layout
    if not layout.documents:
        raise EvaluationConfigError(
            "An attention view needs documents in the prompt: pass ContextPrompt(documents=[...])."
        )
    ids = torch.tensor([tokens.input_ids], device=model.device)
    with model_lock(network), in_eval_mode(network):
        weights = last_token_attention(network, ids, "The attention view")
    rows = weights.mean(dim=1).double().numpy()  # [layers, l]
    return DocumentAttention(
        layers=tuple(sorted(model_traits(network).layers)),
        documents=np.stack(
            [rows[:, start:end].sum(axis=1) for start, end in layout.documents], axis=1
        ),
        first_token=rows[:, 0],
        prefix=rows[:, 1 : layout.prefix_tokens].sum(axis=1),
        suffix=rows[:, layout.suffix_start :].sum(axis=1),
    )


def plot_document_attention(view: DocumentAttention) -> Figure:
    """A heat map: layers from top to bottom, documents from left to right.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    figure, [axes] = new_figure(height=max(2.6, 0.13 * len(view.layers) + 1.6))
    image = axes.imshow(100 * view.documents, aspect="auto", cmap="viridis", vmin=0)
    figure.colorbar(image, ax=axes, label="Attention of the last token, %")
    documents = view.documents.shape[1]
    axes.set_xticks(range(0, documents, max(1, round(documents / 10))))
    rows = range(0, len(view.layers), max(1, round(len(view.layers) / 12)))
    axes.set_yticks(rows, [str(view.layers[row]) for row in rows])
    axes.set_xlabel("Position of the document")
    axes.set_ylabel("Layer")
    return figure
