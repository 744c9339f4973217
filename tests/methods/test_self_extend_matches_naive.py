"""Self-Extend against two whole matrices of scores."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rag_middle.attention import applied, change
from rag_middle.methods import SIW, Compose, SelfExtend
from rag_middle.methods.self_extend import kernels
from rag_middle.methods.self_extend.kernels import TwoFold, attend
from rag_middle.ops.scores import ScoreRule
from tests.conftest import FamilyModel
from tests.contract.cases import LONG, SHORT
from tests.contract.running import distance, generated, prompt_logits
from tests.families import FAMILIES
from tests.methods.against_naive import TOLERANCE, WAYS, assert_equal_to_naive
from tests.reference.self_extend import NaiveSelfExtend


@pytest.mark.parametrize(("name", "implementation"), WAYS)
@pytest.mark.parametrize(
    ("method", "settings"),
    [
        (SelfExtend(group=2, window=4), {"group_size": 2, "window": 4}),
        (SelfExtend(group=3, window=3), {"group_size": 3, "window": 3}),
        (SelfExtend(group=4, window=7), {"group_size": 4, "window": 7}),
        (
            SelfExtend(group=2, window=2, log_scale_base=3),
            {"group_size": 2, "window": 2, "log_scale_base": 3},
        ),
    ],
    ids=lambda given: repr(given) if isinstance(given, SelfExtend) else "",
)
@pytest.mark.one_in(3)
def test_positions_beyond_the_window_are_grouped(
    name: str,
    implementation: str,
    method: SelfExtend,
    settings: dict[str, Any],
    family_model: FamilyModel,
) -> None:
    model = family_model(name, implementation)
    assert_equal_to_naive(model, method, NaiveSelfExtend, **settings)


def test_the_authors_code_divides_the_window_without_rounding(family_model: FamilyModel) -> None:
    assert_equal_to_naive(
        family_model("llama"),
        SelfExtend(group=4, window=7, reference_code=True),
        NaiveSelfExtend,
        group_size=4,
        window=7,
        divides_exactly=True,
    )
    # Only on LLaMA and Gemma; elsewhere, and where the group divides the window, nothing differs.
    for name, group, window in (("qwen3", 4, 7), ("llama", 2, 6)):
        model, logits = family_model(name), []
        for reference_code in (False, True):
            method = SelfExtend(group=group, window=window, reference_code=reference_code)
            with applied(model, method, [LONG.tokens]):
                logits.append(prompt_logits(model, LONG))
        assert torch.equal(*logits)


#: Token whose weight is scaled, and what documents are scaled by: None is found while reading.
_WEIGHTS = [(0, (0.0, 3.0, 0.4)), (0, None), (1, (0.0, 3.0, 0.4)), (6, (0.0, 3.0, 0.4))]


@pytest.mark.parametrize(("name", "implementation"), WAYS)
@pytest.mark.parametrize(("token", "alphas"), _WEIGHTS)  # token 6 is within a document
@pytest.mark.one_in(3)
def test_weights_of_a_token_are_scaled_under_grouped_positions(
    name: str,
    implementation: str,
    token: int,
    alphas: tuple[float, ...] | None,
    family_model: FamilyModel,
) -> None:
    found = {"alpha_dense": 0.2, "alpha_sparse": 2.5}
    given = {"alpha_per_document": alphas} if alphas else found
    assert_equal_to_naive(
        family_model(name, implementation),
        Compose(methods=(SelfExtend(group=3, window=5), SIW(layers=(0, 2), token=token, **given))),
        NaiveSelfExtend,
        group_size=3,
        window=5,
        documents=lambda prompt: prompt.layout.documents,
        alphas={0: alphas, 2: alphas},
        token=token,
        **found,
    )


@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("key", [0, 3, 17, 23])
@pytest.mark.parametrize("limit", [None, 1, 4, 5, 6, 11, 40])
@pytest.mark.parametrize("rows", [1, 7, 24])
@pytest.mark.one_in(3)
def test_a_window_of_the_models_own_hides_what_is_beyond(
    rows: int, limit: int | None, key: int, softcap: float | None
) -> None:
    make, window, total, watch = torch.Generator().manual_seed(0), 5, 24, max(0, rows - 2)
    q = TwoFold(*torch.randn(2, 1, 4, rows, 8, generator=make))
    k = TwoFold(*torch.randn(2, 1, 2, total, 8, generator=make))
    v = torch.randn(1, 2, total, 8, generator=make)
    sinks = torch.randn(4, generator=make)
    distance = torch.arange(total - rows, total)[:, None] - torch.arange(total)
    hidden = (distance < 0) if limit is None else (distance < 0) | (distance >= limit)
    near, far = (x @ y.repeat_interleave(2, dim=1).mT for x, y in zip(q, k, strict=True))
    rule = ScoreRule(scale=0.3, window=limit, softcap=softcap)
    scores = rule.cap_(0.3 * torch.where(distance < window, near, far))
    scores = scores.masked_fill(hidden, -torch.inf)
    extra = sinks[None, :, None, None].expand(1, 4, rows, 1)
    weights = torch.cat((scores, extra), dim=-1).softmax(-1)[..., :-1]
    read = attend(q, k, v, window, rule, sinks=sinks, watch=watch, key=key)
    expected = (weights @ v.repeat_interleave(2, dim=1), weights[..., key], weights[:, :, watch])
    for got, want in zip(read, expected, strict=True):
        torch.testing.assert_close(got, want, atol=1e-5, rtol=0)


@pytest.mark.parametrize("alive", [1, 40, 700])
def test_scores_of_a_few_rows_and_heads_at_a_time(
    alive: int, family_model: FamilyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, method = family_model("gemma2"), SelfExtend(group=2, window=3)
    prompts = [SHORT.tokens, LONG.tokens]
    with applied(model, method, prompts):
        tokens, expected = generated(model, [SHORT, LONG])
    monkeypatch.setattr(kernels, "scores_at_once", lambda device: alive)
    with applied(model, method, prompts):
        again, logits = generated(model, [SHORT, LONG])
    assert torch.equal(again, tokens)
    assert distance(logits, expected) < TOLERANCE


def test_a_prompt_within_the_window_is_not_changed(family_model: FamilyModel) -> None:
    model, method = family_model("llama"), SelfExtend(group=2, window=LONG.layout.length)
    plain = prompt_logits(model, LONG)
    with applied(model, method, [LONG.tokens]):
        assert distance(prompt_logits(model, LONG), plain) < TOLERANCE


@pytest.mark.parametrize("name", ["llama", "llama_dynamic"])
def test_tokens_beyond_the_tables_that_were_made_get_their_own(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, prompts = SelfExtend(group=2, window=3), [SHORT.tokens, LONG.tokens]
    found = []
    for step in (change.TABLE_STEP, 1):
        monkeypatch.setattr(change, "TABLE_STEP", step)
        model = FAMILIES[name].build()  # dynamic frequencies remember earlier inputs
        with applied(model, method, prompts):
            found.append(generated(model, [SHORT, LONG]))
    (tokens, expected), (again, logits) = found
    assert torch.equal(again, tokens)
    assert distance(logits, expected) < TOLERANCE
