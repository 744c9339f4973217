"""Golden cases of methods that put documents in order before the model reads them.

Their prompt is recorded as it was given. What this package's method makes of it is compared with
the order that was recorded, and the model then reads the prompt in that order.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from rag_middle.attention import ModelTraits, last_token_attention, model_traits
from rag_middle.errors import FileFormatError
from rag_middle.generation.forward import next_token_logits
from rag_middle.methods import PINE, Method, NoMethod
from rag_middle.tokens import TokenizedPrompt
from rag_middle.verify.cases import GoldenCase, RecordedRun


class Arranged(NamedTuple):
    """A run as the model should read it, and how its order differs from the recorded one."""

    run: RecordedRun
    mismatch: str = ""


def arranged_run(
    case: GoldenCase, method: Method, model: PreTrainedModel, run: RecordedRun
) -> Arranged:
    """The run in the method's order; unchanged for methods that reorder nothing.

    Raises:
        FileFormatError: no order was recorded.
    """
    if not method.arranges:
        return Arranged(run)
    prompt = TokenizedPrompt(
        input_ids=run.input_ids,
        layout=run.layout,
        document_ids=(None,) * len(run.layout.documents),
    )
    sorts = "final_order" in case.fields
    # PINE's order only decides ties, and no case has one: the result must be the recorded one.
    expected = None if isinstance(method, PINE) else _recorded_order(case, sorts)
    if expected is not None and case.params.get("ordering") == "given":
        order = expected
    else:
        runner = _GoldenRunner(model, method.name)
        order = [int(index) for index in method.arrange(prompt, runner)]
    if expected is not None and order != expected:
        return Arranged(run, f"orders documents {order}, recorded is {expected}")
    ordered = prompt.select(order)
    positions = run.positions
    if not sorts:  # rows were recorded at the tokens of the prompt as it was given
        moved = np.arange(len(prompt))  # where each token of the prompt is in the ordered one
        for index, (first, end) in zip(order, ordered.layout.documents, strict=True):
            moved[slice(*prompt.layout.documents[index])] = np.arange(first, end)
        positions = moved[positions]
    return Arranged(
        replace(run, input_ids=ordered.input_ids, layout=ordered.layout, positions=positions)
    )


def _recorded_order(case: GoldenCase, sorts: bool) -> list[int]:
    """From the first to the last document."""
    order = case.fields["final_order"] if sorts else case.params.get("global_ordering")
    if not isinstance(order, list) or not all(type(index) is int for index in order):
        raise case.malformed(f"its order should be a list of integers, got {order!r}")
    return order if sorts else order[::-1]  # a global order begins next to the question


class _GoldenRunner:
    """`rag_middle.methods.Runner` on a model without a tokenizer."""

    def __init__(self, model: PreTrainedModel, method: str) -> None:
        self._model = model
        self._method = method

    @property
    def traits(self) -> ModelTraits:
        return model_traits(self._model)

    def last_token_attention(self, prompt: TokenizedPrompt) -> Tensor:
        return last_token_attention(
            self._model, torch.tensor([prompt.input_ids], device="cpu"), self._method
        )

    def logits(self, prompt: TokenizedPrompt, method: Method | None = None) -> Tensor:
        return next_token_logits(self._model, prompt, method or NoMethod())

    def token_ids(self, text: str) -> tuple[int, ...]:
        raise FileFormatError(f"{self._method} needs a tokenizer, which golden cases have not.")
