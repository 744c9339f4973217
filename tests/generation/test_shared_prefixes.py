"""Prompts of a batch that share a prefix: the same answers from fewer tokens."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from rag_middle import ContextPrompt
from rag_middle.generation import RagMiddleModel, shared_prefixes
from rag_middle.generation.prompts import Prompt
from rag_middle.methods import (
    LPES,
    SIW,
    AttentionBuckets,
    Compose,
    LongContextReorder,
    Method,
    NoMethod,
    Permutation,
)
from rag_middle.methods.document_blocks.document_cache import can_reuse_states
from rag_middle.tokens import TokenizedPrompt
from tests.generation.conftest import MakeModel
from tests.tiny_models import seeing_pictures


@pytest.fixture
def alike(prompt: ContextPrompt) -> list[ContextPrompt]:
    """Orders of three documents, and other questions about them and about one; three lengths."""
    prompt = prompt.with_documents(replace(each, text=each.text * 6) for each in prompt.documents)
    orders = [prompt.permuted(order) for order in ([2, 0, 1], [0, 2, 1], [0, 1, 2])]
    asked = ContextPrompt(prompt.prefix, prompt.documents, "Which fox?")
    return [*orders, asked, ContextPrompt("Read.\n\n", prompt.documents[:1], "What?")]


def tokens_read(model: RagMiddleModel, prompts: Sequence[Prompt], method: Method) -> int:
    """How many tokens, padding included, the model reads for scores of one token each."""
    read = []
    hook = model.model.register_forward_hook(  # of whole passes: none ends early where it waits
        lambda *called: read.append(called[2]["input_ids"].numel()), with_kwargs=True
    )
    try:
        model.score_batch(prompts, [[5]] * len(prompts), method=method, max_batch_size=16)
    finally:
        hook.remove()
    return sum(read)


BUCKETS = AttentionBuckets(base_factors=(1.0, 2.0))
METHODS = (NoMethod(), Permutation(orders=2), LPES(factors=1.2), BUCKETS)


@pytest.mark.parametrize("method", [*METHODS, Compose(methods=(BUCKETS, LongContextReorder()))])
def test_answers_are_those_of_each_prompt_alone(
    model: RagMiddleModel, alike: list[ContextPrompt], method: Method
) -> None:
    longest = max(len(model.encode(prompt)) for prompt in alike)
    rows = len(alike) * (2 if method.combines else 1)
    assert tokens_read(model, alike, method) < 0.7 * rows * longest
    together = model.score_batch(alike, [(5, 6, 7)] * len(alike), method=method, max_batch_size=16)
    for prompt, score in zip(alike, together, strict=True):
        alone = model.score(prompt, (5, 6, 7), method=method)
        assert score.log_probabilities == pytest.approx(alone.log_probabilities, abs=2e-5)
    for beams in (1, 2):
        how: dict[str, Any] = {"method": method, "max_new_tokens": 6, "num_beams": beams}
        answers = model.batch(alike, max_batch_size=16, **how)
        assert [answer.text for answer in answers] == [
            model.generate(prompt, **how).text for prompt in alike
        ]


def test_prompts_may_begin_other_prompts_or_be_one_token(
    make_model: MakeModel, alike: list[ContextPrompt]
) -> None:
    model = make_model(self_check=False)
    ids = model.encode(alike[0]).input_ids
    rows = [ids[:1], ids, ids[:90], ids, ids[:120]]
    prompts = [
        TokenizedPrompt.assembled(prefix=row, documents=(), suffix=(), document_ids=())
        for row in rows
    ]
    assert tokens_read(model, prompts, NoMethod()) == len(ids) - 1 + len(rows)
    together = model.score_batch(prompts, [(5, 6)] * len(rows), method="none")
    for one, score in zip(prompts, together, strict=True):
        alone = model.score(one, (5, 6), method="none")
        assert score.log_probabilities == pytest.approx(alone.log_probabilities, abs=2e-5)


def test_rows_are_read_together_under_other_methods_and_where_they_share_little_and_are_short(
    make_model: MakeModel, alike: list[ContextPrompt], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model(self_check=False)
    every = [len(model.encode(prompt)) for prompt in alike]
    assert tokens_read(model, alike, SIW()) == len(every) * max(every)
    others = [ContextPrompt(text * 20, ["A fox."], "What?" * len(text)) for text in ("a", "bc")]
    every = [len(model.encode(prompt)) for prompt in others]
    assert tokens_read(model, others, NoMethod()) == 2 * max(every)
    monkeypatch.setattr(shared_prefixes, "_LONG_PROMPT_TOKENS", min(every) - 1)
    assert tokens_read(model, others, NoMethod()) <= sum(every)


def test_a_model_that_remembers_where_pictures_stood_reads_whole_prompts() -> None:
    assert not can_reuse_states(seeing_pictures())
