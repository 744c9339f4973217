"""Scores under several methods: the same numbers, and prompts read once where that is right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import combinations

import pytest
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from rag_middle import ContextPrompt, PromptLayout
from rag_middle.attention import can_share_prompts, model_traits, reading
from rag_middle.generation import RagMiddleModel
from rag_middle.methods import (
    SIW,
    Compose,
    LongContextReorder,
    Method,
    MsPoE,
    NoMethod,
    PositionalHiddenStates,
)
from rag_middle.tokens import TokenizedPrompt
from tests.conftest import FamilyModel
from tests.families import FAMILIES, SUPPORTED

CONTINUATIONS = [(5, 6, 7, 8), (9,), (10, 11, 12)]
#: Everything that a candidate may differ in.
SCALED = [
    PositionalHiddenStates(channels=(3,), factor=-1.0),
    PositionalHiddenStates(channels=(3,), factor=1.0),
    PositionalHiddenStates(channels=(3, 11), factor=0.0, layers=(1,)),
    PositionalHiddenStates(channels=(7,), factor=-2.0, scale_values=True),
    PositionalHiddenStates(channels=(7,), factor=-2.0, skip_first=6),
    PositionalHiddenStates(channels=(7,), factor=-2.0, skip_first=6, scale_values=True),
    PositionalHiddenStates(channels=(7,), factor=-2.0, skip_first=6, reference_code=True),
    PositionalHiddenStates(channels=(5,), factor=-1.5, last_tokens=4),
]


def tokenized(lengths: Sequence[int]) -> list[TokenizedPrompt]:
    return [
        TokenizedPrompt(input_ids=tuple(range(30, 30 + length)), layout=PromptLayout(length=length))
        for length in lengths
    ]


PROMPTS = tokenized((25, 40, 33))


@contextmanager
def columns_read(model: PreTrainedModel) -> Iterator[list[int]]:
    """Columns of every forward pass in the block."""
    seen: list[int] = []
    handle = model.register_forward_pre_hook(
        lambda _module, _args, kwargs: seen.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    try:
        yield seen
    finally:
        handle.remove()


def assert_same_scores(model: RagMiddleModel, methods: Sequence[Method], tolerance: float) -> None:
    found = model.score_methods(PROMPTS, CONTINUATIONS, methods, max_batch_size=2)
    for method, scores in zip(methods, found, strict=True):
        expected = model.score_batch(PROMPTS, CONTINUATIONS, method=method, max_batch_size=2)
        for score, other in zip(scores, expected, strict=True):
            assert score.log_probabilities == pytest.approx(other.log_probabilities, abs=tolerance)
            assert (score.token_ids, score.prompt_tokens) == (other.token_ids, other.prompt_tokens)
            assert (score.method, score.applied) == (other.method, other.applied)


#: A cache that forgets tokens, layers without one, frequencies that depend on the prompt's length.
READ_AGAIN = {
    *("mistral_sliding", "qwen2_sliding", "gemma2", "gemma3_text", "olmo3", "gpt_oss", "cohere2"),
    *("exaone4", "qwen3_next", "llama_dynamic", "llama_longrope"),
}


@pytest.mark.pairs(("family",), [(family,) for family in SUPPORTED])
@pytest.mark.one_in(5)
def test_scores_are_those_of_prompts_read_for_every_method(
    family: str, family_model: FamilyModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    inner = family_model(family)
    model = RagMiddleModel(inner, tokenizer, context_window=512, self_check=False)
    layer = max(model_traits(inner).layers or {1: None})
    methods = [each if each.layers is None else replace(each, layers=(layer,)) for each in SCALED]
    # A row of log-probabilities sums over the vocabulary. Plain keys would move it by 0.01.
    assert_same_scores(model, methods, 5 * FAMILIES[family].tolerance)
    assert can_share_prompts(inner) == (family not in READ_AGAIN)


@pytest.fixture
def plain(llama: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> RagMiddleModel:
    return RagMiddleModel(llama, tokenizer, self_check=False)


def test_every_part_of_a_candidate_moves_the_scores(plain: RagMiddleModel) -> None:
    """Else the comparison above would not notice that one of them was forgotten."""
    scored = plain.score_methods(PROMPTS, CONTINUATIONS, SCALED)
    totals = [scores[0].total for scores in scored]
    assert plain.score(PROMPTS[0], CONTINUATIONS[0]).total == pytest.approx(totals[1], abs=1e-4)
    for one, other in combinations(totals, 2):
        assert abs(one - other) > 1e-2


def test_prompts_are_read_once(plain: RagMiddleModel, llama: PreTrainedModel) -> None:
    methods = SCALED[:4]  # of the last token
    with columns_read(llama) as seen:
        plain.score_methods(PROMPTS, CONTINUATIONS, methods, max_batch_size=2)
    # Two batches: 25 and 33 tokens together, then 40. The last token, and what of continuations
    # predicts a token that is asked for (nothing of one token), are read under each method.
    assert seen == [32, *[1, 3] * 4, 39, *[1] * 4]
    with columns_read(llama) as seen:
        plain.score_methods(PROMPTS[:1], CONTINUATIONS[:1], [*methods, SCALED[-1]])
    assert seen == [24, *[1, 3] * 4, 21, 4, 3]


def test_scores_do_not_depend_on_the_other_methods(plain: RagMiddleModel) -> None:
    together = plain.score_methods(PROMPTS, CONTINUATIONS, SCALED)
    for method, scores in zip(SCALED, together, strict=True):
        assert plain.score_methods(PROMPTS, CONTINUATIONS, [method]) == [scores]  # bit for bit


def test_other_methods_read_prompts_for_themselves(
    plain: RagMiddleModel, prompts: list[ContextPrompt]
) -> None:
    methods: list[Method] = [
        NoMethod(),
        SCALED[0],
        SIW(),
        MsPoE(),
        LongContextReorder(),
        Compose(methods=(SIW(), SCALED[3])),
        SCALED[2],
    ]
    answers = [" the river", " a", "Paris.", (5, 6)]
    found = plain.score_methods(prompts, answers, methods)
    for method, scores in zip(methods, found, strict=True):
        expected = plain.score_batch(prompts, answers, method=method)
        for score, other in zip(scores, expected, strict=True):
            assert score.total == pytest.approx(other.total, abs=1e-4)
            assert score.method == other.method


# -- what was read -------------------------------------------------------------------------------


def test_reading_leaves_no_trace(plain: RagMiddleModel, llama: PreTrainedModel) -> None:
    before = [(name, module.__dict__.copy()) for name, module in llama.named_modules()]
    hooks = [(len(m._forward_pre_hooks), len(m._forward_hooks)) for m in llama.modules()]
    with pytest.raises(RuntimeError, match="broken"), reading(llama):
        raise RuntimeError("broken")
    plain.score_methods(PROMPTS, CONTINUATIONS, SCALED)
    assert [(name, module.__dict__) for name, module in llama.named_modules()] == before
    assert [(len(m._forward_pre_hooks), len(m._forward_hooks)) for m in llama.modules()] == hooks
