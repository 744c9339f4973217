"""What makes a place good or bad: the causal mask, or the position embedding?

Analyses of the papers on position bias (arXiv:2406.02536): one document of a prompt is
given the mask or the positions of another place, everything else stays, and the likelihood of the
answer is measured.
"""

from __future__ import annotations

import inspect
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from rag_middle.attention import in_eval_mode, model_lock, model_traits
from rag_middle.documents import ContextPrompt
from rag_middle.errors import EvaluationConfigError
from rag_middle.generation import RagMiddleModel
from rag_middle.layout import PromptLayout

__all__ = ["Perturbation", "perturbed_log_likelihood"]

#: ``"none"``: the prompt as it is. ``"crop_mask"``: the document's tokens see the prefix and their
#: own document only, as if it came first. ``"positions_to_beginning"``: they are rotated as if the
#: document came first. ``"positions_to_end"``: as if it came last. Other tokens stay as they are.
Perturbation = Literal["none", "crop_mask", "positions_to_beginning", "positions_to_end"]


@torch.no_grad()
def perturbed_log_likelihood(
    model: RagMiddleModel,
    prompt: ContextPrompt,
    answer: str,
    document: int,
    perturbation: Perturbation,
    *,
    template: Any = "auto",
) -> float:
    """Log-likelihood of an answer, in nats, with one document perturbed.

    One forward pass over prompt and answer; memory grows with the square of their tokens.

    Args:
        model: its method is not used.
        prompt: with documents.
        answer: as it follows the prompt; give the space it begins with, if any.
        document: 0-based place of the document.
        perturbation: what to do to it.
        template: as in generation.

    Raises:
        EvaluationConfigError: no such document or perturbation, or an empty answer.
        UnsupportedArchitectureError: a model that takes no positions, has no rotary embedding where
            positions are moved, or sees less than the whole prompt in some layer.
    """
    if perturbation not in get_args(Perturbation):
        raise EvaluationConfigError(
            f"perturbation must be one of {', '.join(get_args(Perturbation))}, got "
            f"{perturbation!r}."
        )
    tokens = model.encode(prompt, method="none", template=template)
    count = len(tokens.layout.documents)
    if not 0 <= document < count:
        raise EvaluationConfigError(
            f"The prompt has {count} documents, 0-based; there is no document {document}."
        )
    continuation = model.token_ids(answer)
    if not continuation:
        raise EvaluationConfigError("The answer has no tokens; give some text.")
    ids = torch.tensor([tokens.input_ids + continuation], device=model.device)
    _check(model, ids.shape[1], perturbation)
    mask, positions = _perturbed(tokens.layout, ids.shape[1], document, perturbation)
    inner: Any = model.model
    additive = torch.zeros(mask.shape, dtype=inner.dtype)
    additive.masked_fill_(~mask, torch.finfo(inner.dtype).min)
    with model_lock(inner), in_eval_mode(inner):
        logits = inner(
            input_ids=ids,
            attention_mask=additive[None, None].to(ids.device),
            position_ids=positions[None].to(ids.device),
            use_cache=False,
        ).logits[0]
    rows = logits[len(tokens) - 1 : -1].float().log_softmax(dim=-1)
    wanted = torch.tensor(continuation, device=rows.device)
    return float(rows.gather(1, wanted[:, None]).sum())


def _check(model: RagMiddleModel, length: int, perturbation: Perturbation) -> None:
    inner: Any = model.model
    traits = model_traits(inner)
    if "position_ids" not in inspect.signature(inner.forward).parameters:
        raise traits.unsupported("it takes no positions.", "Perturbations cannot be tried on it.")
    if perturbation.startswith("positions") and traits.rope_type is None:
        raise traits.unsupported("it has no rotary positions to move.", "Try crop_mask.")
    windows = [t.sliding_window for t in traits.layers.values() if t.sliding_window is not None]
    if windows and min(windows) < length:
        raise traits.unsupported(
            f"some layers see {min(windows)} tokens, and prompt and answer have {length}.",
            "Use a shorter prompt.",
        )
    if "flash" in str(inner.config._attn_implementation):
        raise traits.unsupported(
            "flash attention takes no mask of this kind.",
            "Load the model with attn_implementation='sdpa'.",
        )


def _perturbed(
    layout: PromptLayout, length: int, document: int, perturbation: Perturbation
) -> tuple[Tensor, Tensor]:
    """What sees what ``[n, n]``, and positions ``[n]``."""
    visible = torch.ones(length, length, dtype=torch.bool).tril()
    positions = torch.arange(length)
    start, end = layout.documents[document]
    first = layout.prefix_tokens
    if perturbation == "crop_mask":
        visible[start:end, first:start] = False
    elif perturbation == "positions_to_beginning":
        positions[start:end] = torch.arange(first, first + end - start)
    elif perturbation == "positions_to_end":
        last = layout.suffix_start
        positions[start:end] = torch.arange(last - (end - start), last)
    return visible, positions
