"""Drawn tokens: the right distribution, from random numbers that are nobody else's."""

import random
from collections import Counter
from typing import Any

import pytest
import torch
from transformers import (
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from rag_middle import ContextPrompt
from rag_middle.generation import RagMiddleModel
from rag_middle.generation.processors import Sampler
from rag_middle.options import GenerationOptions

DRAWS = 4000


def test_a_text_can_be_repeated_by_its_seed(model: RagMiddleModel, prompt: ContextPrompt) -> None:
    drawn: Any = {"max_new_tokens": 12, "temperature": 1.5}
    first, second = model.batch([prompt, prompt], **drawn)
    assert first.text != second.text
    assert model.generate(prompt, seed=second.seed, **drawn).text == second.text
    assert model.generate(prompt, seed=7, **drawn).seed == 7


def test_a_seed_means_the_same_in_a_batch(
    model: RagMiddleModel, prompts: list[ContextPrompt]
) -> None:
    seeds = [3, 1, 4, 1]
    options = {"max_new_tokens": 8, "temperature": 1.2, "top_p": 0.9, "method": "pine"}
    alone = [
        model.generate(p, seed=seed, **options)  # type: ignore[arg-type]
        for p, seed in zip(prompts, seeds, strict=True)
    ]
    together = model.batch(prompts, seed=seeds, max_batch_size=3, **options)  # type: ignore[arg-type]
    assert [g.token_ids for g in together] == [g.token_ids for g in alone]
    assert [g.seed for g in together] == seeds


def test_global_random_numbers_are_neither_used_nor_moved(
    model: RagMiddleModel, prompt: ContextPrompt
) -> None:
    torch.manual_seed(0)
    random.seed(0)
    before, before_python = torch.get_rng_state(), random.getstate()
    first = model.generate(prompt, max_new_tokens=8, temperature=1.0, seed=2).text
    assert torch.equal(torch.get_rng_state(), before)
    assert random.getstate() == before_python
    torch.manual_seed(1)
    assert model.generate(prompt, max_new_tokens=8, temperature=1.0, seed=2).text == first


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(1.0, 0, 1.0), (0.7, 0, 1.0), (1.3, 4, 1.0), (1.0, 0, 0.8)]
)
def test_tokens_are_drawn_from_the_distribution_transformers_draws_from(
    temperature: float, top_k: int, top_p: float
) -> None:
    logits = torch.randn(1, 9, generator=torch.Generator().manual_seed(0)) * 2
    warped = TemperatureLogitsWarper(temperature)(None, logits)
    if top_k:
        warped = TopKLogitsWarper(top_k)(None, warped)
    if top_p < 1:
        warped = TopPLogitsWarper(top_p)(None, warped)
    expected = warped.softmax(-1)[0]

    options = GenerationOptions(temperature=temperature, top_k=top_k, top_p=top_p)
    sampler = Sampler(range(DRAWS), options)
    scores = sampler(torch.zeros(DRAWS, 1, dtype=torch.long), logits.expand(DRAWS, -1))

    assert (scores > -torch.inf).sum(dim=1).eq(1).all()
    counts = Counter(scores.argmax(dim=1).tolist())
    for token, probability in enumerate(expected.tolist()):
        # Five standard deviations of a binomial share.
        tolerance = 5 * (probability * (1 - probability) / DRAWS) ** 0.5
        assert abs(counts[token] / DRAWS - probability) <= tolerance


def test_typical_sampling_is_that_of_transformers() -> None:
    logits = torch.tensor([[1.5, *(0.01 * rank for rank in range(10))]])
    allowed = TypicalLogitsWarper(0.5)(torch.empty(1, 0), logits).isfinite()[0]
    assert not allowed[0], "the most probable token is not the most typical one here"
    drawn = set()
    for seed in range(60):
        sampler = Sampler([seed], GenerationOptions(temperature=1.0, typical_p=0.5))
        drawn.add(int(sampler(torch.empty(1, 0), logits).argmax()))
    assert drawn == set(allowed.nonzero()[:, 0].tolist())
