"""In which order methods put documents, and what they do to come to it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import log
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from rag_middle.attention import ModelTraits, last_token_attention, model_traits
from rag_middle.errors import MethodConfigError
from rag_middle.methods import (
    AttentionCalibration,
    AttentionSorting,
    AttnRank,
    LongContextReorder,
    MeasuredOrder,
    Method,
    Permutation,
)
from rag_middle.tokens import TokenizedPrompt
from tests.adapters import PromptTuned
from tests.conftest import FamilyModel

PREFIX, SUFFIX = (1, 2), (3,)


def prompt_of(*documents: Sequence[int], scores: Sequence[float] | None = None) -> TokenizedPrompt:
    return TokenizedPrompt.assembled(
        prefix=PREFIX,
        documents=documents,
        suffix=SUFFIX,
        document_ids=(None,) * len(documents),
        scores=scores,
    )


def scored(*scores: float) -> TokenizedPrompt:
    return prompt_of(*[(10 + index,) for index in range(len(scores))], scores=scores)


def unscored(count: int) -> TokenizedPrompt:
    return prompt_of(*[(10 + index,) for index in range(count)])


@dataclass
class Told:
    """A model whose attention to a token is what the test says, by token and place.

    Attributes:
        weights: attention to a token, by its id; 0 for others.
        of_places: added to it, by 0-based place of the token in the prompt.
        seen: prompts that were looked at.
    """

    weights: dict[int, float]
    of_places: dict[int, float] = field(default_factory=dict)
    seen: list[tuple[int, ...]] = field(default_factory=list)
    layers: int = 2

    @property
    def traits(self) -> ModelTraits:
        # Only the indices of the layers are asked for.
        return ModelTraits(
            model_type="told",
            num_layers=self.layers,
            hidden_size=1,
            rope_type=None,
            layers=dict.fromkeys(range(self.layers)),  # type: ignore[arg-type]
        )

    def last_token_attention(self, prompt: TokenizedPrompt) -> Tensor:
        self.seen.append(prompt.input_ids)
        row = [
            self.weights.get(token, 0.0) + self.of_places.get(place, 0.0)
            for place, token in enumerate(prompt.input_ids)
        ]
        # The first layer sees nothing at all.
        return torch.tensor([[[0.0] * len(row)]] * (self.layers - 1) + [[row]])

    def logits(self, prompt: TokenizedPrompt, method: Method | None = None) -> Tensor:
        raise NotImplementedError

    def token_ids(self, text: str) -> tuple[int, ...]:
        return tuple(map(int, text.split()))


NOBODY = Told({})


# -- long-context reorder ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "order"),
    [
        (unscored(5), [0, 2, 4, 3, 1]),
        (unscored(4), [0, 2, 3, 1]),
        (unscored(1), [0]),
        (unscored(0), []),
        (scored(0.1, 0.9, 0.5), [1, 0, 2]),
        (scored(0.5, 0.5, 0.5), [0, 2, 1]),  # ties keep the order of the prompt
    ],
)
def test_the_best_documents_stand_at_both_ends(prompt: TokenizedPrompt, order: list[int]) -> None:
    assert list(LongContextReorder().arrange(prompt, NOBODY)) == order


# -- AttnRank ------------------------------------------------------------------------------------


def test_the_best_document_stands_where_attention_is_highest() -> None:
    method = AttnRank(profile=(0.3, 0.1, 0.2))
    assert list(method.arrange(scored(1.0, 2.0, 3.0), NOBODY)) == [2, 0, 1]
    assert list(method.arrange(unscored(3), NOBODY)) == [0, 2, 1]


def test_the_best_document_stands_where_accuracy_is_highest() -> None:
    method = MeasuredOrder(accuracy=(0.3, 0.1, 0.5))
    assert list(method.arrange(scored(1.0, 2.0, 3.0), NOBODY)) == [1, 0, 2]
    assert list(method.arrange(unscored(3), NOBODY)) == [1, 2, 0]
    assert list(method.arrange(unscored(5), NOBODY)) == [2, 3, 4, 1, 0]
    assert list(method.arrange(unscored(1), NOBODY)) == [0]
    with pytest.raises(MethodConfigError, match="rag-middle diagnose"):
        MeasuredOrder()


def test_a_profile_is_interpolated_to_other_numbers_of_documents() -> None:
    # At five places: 0, 1, 2, 3, 4 of a line through 0 and 4, with a peak in the middle.
    method = AttnRank(profile=(0.0, 10.0, 4.0))  # 0, 5, 10, 7, 4
    assert list(method.arrange(unscored(5), NOBODY)) == [4, 2, 0, 1, 3]
    assert list(AttnRank(profile=(1.0, 5.0, 2.0)).arrange(unscored(2), NOBODY)) == [1, 0]


def test_without_a_profile_every_document_stands_in_every_place_once() -> None:
    told = Told(weights={10: 9.0, 11: 1.0, 12: 5.0}, of_places={2: 0.2, 3: 0.1, 4: 0.3})
    assert list(AttnRank().arrange(unscored(3), told)) == [1, 2, 0]
    assert [ids[2:5] for ids in told.seen] == [(10, 11, 12), (11, 12, 10), (12, 10, 11)]


def test_a_profile_is_measured_over_several_prompts() -> None:
    told = Told(weights={10: 8.0}, of_places={2: 3.0, 3: 1.0})
    measured = AttnRank.measured([unscored(2), prompt_of((20,), (21,))], told)
    # Means of (3 + 4, 1 + 4) and (3, 1), over two layers of which one sees nothing.
    assert measured.profile == (2.5, 1.5)


@pytest.mark.parametrize("prompts", [[], [unscored(1)], [unscored(2), unscored(3)]])
def test_a_profile_needs_prompts_of_one_kind(prompts: list[TokenizedPrompt]) -> None:
    with pytest.raises(MethodConfigError, match="the same number of documents"):
        AttnRank.measured(prompts, NOBODY)


# -- what they look at ---------------------------------------------------------------------------


def test_attention_to_virtual_tokens_is_left_out(family_model: FamilyModel) -> None:
    ids = torch.arange(5, 17)[None]
    virtual = 5
    tuned: Any = PromptTuned(family_model("llama"), virtual)
    eager: Any = PromptTuned(family_model("llama", "eager"), virtual)
    seen = last_token_attention(tuned, ids, "attn_rank")
    with torch.no_grad():
        weights = eager(ids, output_attentions=True).attentions
    assert torch.allclose(seen, torch.stack(weights)[:, 0, :, -1, virtual:], atol=1e-5)


# -- attention sorting ---------------------------------------------------------------------------


def test_long_documents_are_favoured() -> None:
    prompt, told = prompt_of((10, 10, 10), (11,)), Told({10: 0.2, 11: 0.5})
    assert list(AttentionSorting(iterations=1).arrange(prompt, told)) == [1, 0]
    assert list(AttentionSorting(iterations=1, best_last=False).arrange(prompt, told)) == [0, 1]


def test_attention_is_measured_again_in_the_new_order() -> None:
    # The first place attracts: one sort brings 10 back, the next one 11.
    told = Told({10: 0.1, 11: 0.2, 12: 0.9}, of_places={2: 0.5})
    orders = [list(AttentionSorting(iterations=n).arrange(unscored(3), told)) for n in range(4)]
    assert orders == [[0, 1, 2], [1, 0, 2], [0, 1, 2], [1, 0, 2]]


def test_an_order_that_reproduces_itself_ends_the_sorting() -> None:
    told = Told({10: 0.3, 11: 0.1})
    assert list(AttentionSorting(iterations=9).arrange(unscored(2), told)) == [1, 0]
    assert len(told.seen) == 2


def test_only_chosen_layers_count() -> None:
    told = Told({10: 0.3, 11: 0.1})
    blind = AttentionSorting(iterations=1, layers=(0,))
    assert list(blind.arrange(unscored(2), told)) == [0, 1]
    assert list(AttentionSorting(iterations=1, layers=(1,)).arrange(unscored(2), told)) == [1, 0]


# -- attention calibration -----------------------------------------------------------------------


def test_the_attention_of_the_place_is_subtracted() -> None:
    # Places attract 0.9, 0.1 and 0.5; what the documents say is worth 0.1, 0.3 and 0.2.
    told = Told({10: 0.1, 11: 0.3, 12: 0.2}, of_places={2: 0.9, 3: 0.1, 4: 0.5})
    method = AttentionCalibration(dummy="7")
    assert list(method.arrange(unscored(3), told)) == [0, 2, 1]
    assert [ids[2:5] for ids in told.seen] == [(10, 11, 12), (7, 11, 12), (10, 7, 12), (10, 11, 7)]
    plain = AttentionSorting(iterations=1)
    assert list(plain.arrange(unscored(3), told)) == [1, 2, 0]
    best_first = AttentionCalibration(dummy="7", best_last=False)
    assert list(best_first.arrange(unscored(3), told)) == [1, 2, 0]


def test_the_dummy_is_as_long_as_the_document_it_stands_for() -> None:
    told = Told({})
    AttentionCalibration(dummy="7 8", one_pass=True).arrange(prompt_of((10,), (11, 11, 11)), told)
    assert told.seen[1:] == [(*PREFIX, 7, 7, 8, 7, *SUFFIX)]


def test_a_dummy_without_tokens_is_refused() -> None:
    with pytest.raises(MethodConfigError, match="no tokens of the dummy"):
        AttentionCalibration(dummy=" ").arrange(unscored(2), Told({}))


# -- permutation ---------------------------------------------------------------------------------


def test_orders_are_distinct_begin_with_the_given_one_and_repeat() -> None:
    branches = Permutation(orders=5).branches(unscored(4), NOBODY)
    assert branches[0] == (0, 1, 2, 3)
    assert len(set(branches)) == 5
    assert all(sorted(branch) == [0, 1, 2, 3] for branch in branches)
    assert Permutation(orders=5).branches(unscored(4), NOBODY) == branches
    assert Permutation(orders=5, seed=1).branches(unscored(4), NOBODY) != branches


@pytest.mark.parametrize(("documents", "orders"), [(0, 1), (1, 1), (2, 2), (3, 6), (4, 20)])
def test_there_are_no_more_orders_than_documents_have(documents: int, orders: int) -> None:
    assert len(Permutation(orders=20).branches(unscored(documents), NOBODY)) == orders


def test_the_mean_of_log_probabilities() -> None:
    probabilities = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.5, 0.4]])
    combined = Permutation().combine(probabilities.log() + 3.0).softmax(-1)
    products = (probabilities[0] * probabilities[1]).sqrt()
    torch.testing.assert_close(combined, products / products.sum())


def test_a_majority_wins_against_a_better_mean_and_ties_go_to_the_mean() -> None:
    vote = Permutation(combination="vote")
    majority = torch.tensor([[0.51, 0.49, 0.0], [0.51, 0.49, 0.0], [0.0, 0.99, 0.01]]).log()
    assert vote.combine(majority).argmax() == 0
    assert Permutation().combine(majority.clamp(min=-20)).argmax() == 1
    tie = torch.tensor([[0.6, 0.4, 0.0], [0.1, 0.9, 0.0]]).log()
    assert vote.combine(tie).argmax() == 1
    torch.testing.assert_close(vote.combine(majority).exp().sum(), torch.tensor(1.0))
    assert vote.combine(torch.randn(2, 3, 4, 7)).shape == (2, 3, 7)
    unlikely = torch.tensor([[0.0, -200.0], [0.0, -200.0]])  # a probability of 0 in float32
    assert vote.combine(unlikely)[1].item() == pytest.approx(-200 - log(3))


# -- parameters ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method", [AttentionSorting(layers=(0, 3)), AttentionCalibration(layers=(3,))]
)
def test_layers_that_do_not_exist_are_refused_with_the_model(
    method: Method, family_model: FamilyModel
) -> None:
    model: PreTrainedModel = family_model("llama")
    with pytest.raises(MethodConfigError, match=r"layers \[3\].*choose from \[0, 1, 2\]"):
        method.plan((), model_traits(model))
