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
from tests.contract.cases import LONG, Prompt
from tests.methods.against_naive import WAYS, assert_equal_to_naive
from tests.reference.llama import NaiveLlama
from tests.reference.perturbations import (
    NaiveCroppedMask,
    NaiveDoubledAttention,
    NaiveMovedPositions,
)


def span(document: int) -> Any:
    return lambda prompt: prompt.layout.documents[document]


def target(document: int, to: str) -> Any:
    def of(prompt: Prompt) -> int:
        start, end = prompt.layout.documents[document]
        if to == "beginning":
            return prompt.layout.prefix_tokens
        return prompt.layout.suffix_start - (end - start)

    return of


@pytest.mark.parametrize(("name", "implementation"), WAYS)
def test_a_cropped_document_sees_itself_and_the_first_token(
    name: str, implementation: str, family_model: Callable[..., Any]
) -> None:
    assert_equal_to_naive(
        family_model(name, implementation),
        CroppedMask(document=1, layers=(0, 1)),
        NaiveCroppedMask,
        span=span(1),
        changed_layers=(0, 1),
    )


@pytest.mark.parametrize(("document", "to"), [(2, "beginning"), (0, "end")])
@pytest.mark.parametrize(("name", "implementation"), WAYS)
@pytest.mark.one_in(3)
def test_the_last_token_alone_sees_a_document_elsewhere(
    name: str, implementation: str, document: int, to: Any, family_model: Callable[..., Any]
) -> None:
    assert_equal_to_naive(
        family_model(name, implementation),
        MovedPositions(document=document, to=to),
        NaiveMovedPositions,
        span=span(document),
        target=target(document, to),
    )


@pytest.mark.parametrize("renormalise", [False, True])
@pytest.mark.parametrize(("name", "implementation"), WAYS)
@pytest.mark.one_in(3)
def test_the_last_token_alone_weighs_a_document_more(
    name: str, implementation: str, renormalise: bool, family_model: Callable[..., Any]
) -> None:
    assert_equal_to_naive(
        family_model(name, implementation),
        DoubledAttention(document=1, factor=3.0, layers=(0, 2), renormalise=renormalise),
        NaiveDoubledAttention,
        span=span(1),
        factor=3.0,
        renormalise=renormalise,
        changed_layers=(0, 2),
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


@pytest.mark.parametrize(("name", "implementation"), WAYS)
def test_documents_see_each_other_at_their_own_positions(
    name: str, implementation: str, family_model: Callable[..., Any]
) -> None:
    assert_equal_to_naive(
        family_model(name, implementation),
        MutualDocuments(),
        _NaiveMutual,
        documents=lambda prompt: prompt.layout.documents,
    )


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
