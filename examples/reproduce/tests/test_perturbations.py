"""Perturbations against twins that compute row by row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from rag_middle_reproduce.perturbations import (
    CroppedMask,
    DoubledAttention,
    MovedPositions,
    MutualDocuments,
)
from rag_middle_reproduce.tasks.json_pairs import JsonPairs
from torch import Tensor

from rag_middle import ContextPrompt, MethodConfigError, UnsupportedArchitectureError
from rag_middle.attention import applied
from rag_middle.evaluation import position
from rag_middle.generation import RagMiddleModel
from rag_middle.methods import Method
from tests.contract.cases import LONG, Prompt
from tests.methods.against_naive import WAYS, assert_equal_to_naive
from tests.reference.llama import NaiveLlama
from tests.reference.perturbations import (
    NaiveCroppedMask,
    NaiveDoubledAttention,
    NaiveMovedPositions,
)


@dataclass
class _NaiveMutual(NaiveLlama):
    """Documents see all of each other; a twin of its own, as no other reads both ways in place."""

    documents: tuple[tuple[int, int], ...] = ()

    def attention(self, layer: int, hidden: Tensor) -> Tensor:
        out = super().attention(layer, hidden)
        q, k, v = self.project(layer, hidden)
        positions = torch.arange(hidden.shape[0])
        end = self.documents[-1][1]
        for head in range(self.heads):
            queries = self.rotated(q[head], positions)
            keys, values = self.rotated(k[self.group(head)], positions), v[self.group(head)]
            for first, last in self.documents:
                for token in range(first, last):
                    seen = [*range(token + 1), *range(last, end)]
                    scores = keys[seen] @ queries[token] / self.head_size**0.5
                    out[head, token] = scores.softmax(0) @ values[seen]
        return out


def span(document: int) -> Any:
    return lambda prompt: prompt.layout.documents[document]


def last_place(document: int) -> Any:
    """Where the document would begin if it were the last one."""

    def begin(prompt: Prompt) -> int:
        start, end = prompt.layout.documents[document]
        return prompt.layout.suffix_start - (end - start)

    return begin


def doubled(renormalise: bool) -> tuple[Any, ...]:
    settings: dict[str, Any] = {"factor": 3.0, "renormalise": renormalise}
    method = DoubledAttention(document=1, layers=(0, 2), **settings)
    return method, NaiveDoubledAttention, {**settings, "span": span(1), "changed_layers": (0, 2)}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("method", "twin", "settings"),
    [
        (
            CroppedMask(document=1, layers=(0, 1)),
            NaiveCroppedMask,
            {"span": span(1), "changed_layers": (0, 1)},
        ),
        (
            MovedPositions(document=2),
            NaiveMovedPositions,
            {"span": span(2), "target": lambda prompt: prompt.layout.prefix_tokens},
        ),
        (
            MovedPositions(document=0, to="end"),
            NaiveMovedPositions,
            {"span": span(0), "target": last_place(0)},
        ),
        doubled(renormalise=False),
        doubled(renormalise=True),
        (MutualDocuments(), _NaiveMutual, {"documents": lambda prompt: prompt.layout.documents}),
    ],
)
@pytest.mark.parametrize(("name", "implementation"), WAYS)
@pytest.mark.one_in(5)
def test_a_perturbation_computes_what_its_twin_does(
    name: str,
    implementation: str,
    method: Method,
    twin: type[NaiveLlama],
    settings: dict[str, Any],
    family_model: Callable[..., Any],
) -> None:
    assert_equal_to_naive(family_model(name, implementation), method, twin, **settings)


def test_the_gold_document_is_found_by_its_id_in_every_prompt_of_a_batch(
    model: RagMiddleModel,
) -> None:
    task = JsonPairs(keys=3)
    [item] = task.items(1, 0)
    prompts = [task.prompt(item, position(at)) for at in (0, 2)]
    together = model.score_batch(prompts, ["x", "x"], method=MovedPositions())
    for at, prompt, score in zip((0, 2), prompts, together, strict=True):
        alone = model.score(prompt, "x", method=MovedPositions(document=at))
        assert score.total == pytest.approx(alone.total, abs=1e-4)
    with pytest.raises(MethodConfigError, match="whose id is 'gold'"):
        model.score(ContextPrompt(documents=["a"], suffix="b"), "x", method=MovedPositions())


def test_upper_layers_are_left_alone() -> None:
    assert CroppedMask(document=0).layers == tuple(range(8))


def test_what_cannot_be_perturbed_is_refused(family_model: Callable[..., Any]) -> None:
    with pytest.raises(MethodConfigError, match="factor must be at least 0"):
        DoubledAttention(document=0, factor=-1)
    with pytest.raises(MethodConfigError, match="one of beginning, end"):
        MovedPositions(document=0, to="middle")  # type: ignore[arg-type]
    with (
        pytest.raises(MethodConfigError, match="below 3"),
        applied(family_model("llama"), CroppedMask(document=3), [LONG.tokens]),
    ):
        pass
    with (
        pytest.raises(UnsupportedArchitectureError, match="window"),
        applied(family_model("gemma3_text"), MovedPositions(document=0), [LONG.tokens]),
    ):
        pass
