"""Methods that put documents in order, and methods that combine several forward passes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from rag_middle import ContextPrompt, Document
from rag_middle.generation import RagMiddleModel
from rag_middle.methods import NoMethod, Runner
from rag_middle.tokens import TokenizedPrompt
from tests.contract.running import distance
from tests.generation.conftest import MakeModel

pytestmark = pytest.mark.thorough

NEW = 5


@dataclass(frozen=True, kw_only=True)
class BestLast(NoMethod):
    """Documents by score."""

    def arrange(self, prompt: TokenizedPrompt, runner: Runner) -> Sequence[int]:
        scores = prompt.scores or (0.0,) * len(prompt.layout.documents)
        return sorted(range(len(scores)), key=lambda index: scores[index])


@dataclass(frozen=True, kw_only=True)
class BothWays(NoMethod):
    """Documents as given and reversed; the mean of the two distributions."""

    def branches(self, prompt: TokenizedPrompt, runner: Runner) -> Sequence[Sequence[int]]:
        order = range(len(prompt.layout.documents))
        return (order, order[::-1]) if len(order) > 1 else (order,)

    def combine(self, logits: Tensor) -> Tensor:
        return logits.softmax(-1).mean(-2).log()


def scored(prompt: ContextPrompt, *scores: float) -> ContextPrompt:
    return prompt.with_documents(
        Document(document.text, id=document.id, metadata={"score": score})
        for document, score in zip(prompt.documents, scores, strict=True)
    )


def log_mean(*logits: Tensor) -> Tensor:
    return torch.stack(logits).softmax(-1).mean(0).log()


# -- arrange ---------------------------------------------------------------------------------------


def test_every_call_arranges_documents(model: RagMiddleModel, prompt: ContextPrompt) -> None:
    given, expected = scored(prompt, 3, 1, 2), prompt.permuted([1, 2, 0])
    method = BestLast()
    one = model.generate(given, method=method, max_new_tokens=NEW)
    assert one.document_ids == ("lyon", "fox", "paris")
    assert one.text == model.generate(expected, max_new_tokens=NEW).text
    assert model.batch([given], method=method, max_new_tokens=NEW)[0].text == one.text
    stream = model.stream(given, method=method, max_new_tokens=NEW)
    assert stream.document_ids == one.document_ids
    assert stream.result.text == one.text
    assert model.encode(given, method=method).input_ids == model.encode(expected).input_ids
    score = model.score(given, " Lyon", method=method).log_probabilities
    assert score == model.score(expected, " Lyon").log_probabilities
    assert torch.equal(model.logits(given, method=method), model.logits(expected))


def test_documents_are_arranged_after_those_that_do_not_fit_are_left_out(
    make_model: MakeModel, prompt: ContextPrompt
) -> None:
    given = scored(prompt, 3, 1, 2)
    window = len(make_model().encode(given)) + NEW - 1
    model = make_model(context_window=window)
    generation = model.generate(
        given, method=BestLast(), max_new_tokens=NEW, on_overflow="drop_documents"
    )
    assert [(d.index, d.id) for d in generation.dropped_documents] == [(1, "lyon")]
    assert generation.document_ids == ("fox", "paris")


# -- combine ---------------------------------------------------------------------------------------


def test_every_call_combines_branches(model: RagMiddleModel, prompt: ContextPrompt) -> None:
    reverse, method = prompt.permuted([2, 1, 0]), BothWays()
    logits = log_mean(model.logits(prompt), model.logits(reverse))
    assert distance(model.logits(prompt, method=method), logits) < 1e-4

    one = model.generate(prompt, method=method, max_new_tokens=NEW)
    expected: list[int] = []
    for _ in range(NEW):  # each token from both prompts and all tokens before it
        both = [_after(model, each, expected) for each in (prompt, reverse)]
        expected.append(int(log_mean(*both).argmax()))
    assert list(one.token_ids) == expected
    assert one.usage.completion_tokens == NEW
    assert model.stream(prompt, method=method, max_new_tokens=NEW).result.text == one.text

    score = model.score(prompt, expected, method=method)
    assert score.is_greedy
    alone = [model.score(each, expected[:1]).log_probabilities[0] for each in (prompt, reverse)]
    mean = torch.tensor(alone).exp().mean().log().item()
    assert score.log_probabilities[0] == pytest.approx(mean, abs=1e-4)


def _after(model: RagMiddleModel, prompt: ContextPrompt, tokens: list[int]) -> Tensor:
    encoded = model.encode(prompt)
    longer = TokenizedPrompt.assembled(
        prefix=encoded.prefix_ids,
        documents=encoded.documents_ids,
        suffix=(*encoded.suffix_ids, *tokens),
        document_ids=encoded.document_ids,
    )
    return model.logits(longer)


@pytest.mark.parametrize(
    "options",
    [{}, {"num_beams": 3}, {"temperature": 0.8, "seed": 5}, {"stop": ["e"]}],
    ids=lambda options: "+".join(options) or "greedy",
)
@pytest.mark.parametrize("max_batch_size", [1, 3, 8])
@pytest.mark.one_in(7)
def test_prompts_with_different_numbers_of_branches_share_a_batch(
    options: dict[str, Any],
    max_batch_size: int,
    model: RagMiddleModel,
    prompts: list[ContextPrompt],
) -> None:
    together = model.batch(
        prompts, method=BothWays(), max_new_tokens=8, max_batch_size=max_batch_size, **options
    )
    for prompt, generation in zip(prompts, together, strict=True):
        alone = model.generate(prompt, method=BothWays(), max_new_tokens=8, **options)
        assert generation.token_ids == alone.token_ids
        assert generation.finish_reason == alone.finish_reason
    # The first and the last prompt differ in the order of three documents, reversed or not.
    one_document = model.generate(prompts[2], max_new_tokens=8, **options)
    assert together[2].token_ids == one_document.token_ids
