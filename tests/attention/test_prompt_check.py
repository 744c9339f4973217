"""A block refuses forward passes that do not hold just the prompts it was opened for."""

from __future__ import annotations

import pytest
import torch

from rag_middle.attention import applied
from rag_middle.errors import UnsupportedGenerationError
from rag_middle.layout import PromptLayout
from rag_middle.methods import PINE, MsPoE, PositionInterpolation
from tests.conftest import FamilyModel
from tests.prompts import laid_out

LAYOUT = PromptLayout(12, ((2, 5), (5, 9)))
IDS = torch.arange(5, 17)[None]


def test_tokens_beyond_the_layout_are_refused(family_model: FamilyModel) -> None:
    with (
        pytest.raises(UnsupportedGenerationError, match=r"13 tokens .* layout of 12"),
        applied(family_model("llama"), PINE(), [laid_out(LAYOUT)]),
    ):
        family_model("llama")(input_ids=torch.arange(5, 18)[None])


def test_assisted_decoding_is_refused_rather_than_wrong(family_model: FamilyModel) -> None:
    model = family_model("llama")
    # A prompt that repeats itself, so that looking up n-grams in it proposes tokens.
    ids = torch.tensor([[7, 8, 9, 7, 8, 9, 7, 8, 9, 7, 8, 9]])
    with (
        pytest.raises(UnsupportedGenerationError, match="assisted decoding"),
        applied(model, MsPoE(first_layer=0), [laid_out(LAYOUT)]),
    ):
        model.generate(ids, prompt_lookup_num_tokens=3, max_new_tokens=6, do_sample=False)


def test_padding_on_the_right_is_refused(family_model: FamilyModel) -> None:
    mask = torch.ones_like(IDS)
    mask[:, -1] = 0
    with (
        pytest.raises(UnsupportedGenerationError, match="left"),
        applied(family_model("llama"), PINE(), [laid_out(PromptLayout(11, ((2, 5), (5, 9))))]),
    ):
        family_model("llama")(input_ids=IDS, attention_mask=mask)


def test_position_scaling_alone_does_not_depend_on_the_layout(family_model: FamilyModel) -> None:
    model = family_model("llama")
    with torch.no_grad(), applied(model, PositionInterpolation(scale=2), [laid_out(LAYOUT)]):
        logits = model(input_ids=torch.arange(5, 18)[None]).logits
    assert logits.shape[1] == 13


def test_a_block_in_which_the_model_never_runs_is_pointed_out(family_model: FamilyModel) -> None:
    with (
        pytest.warns(UserWarning, match="did not run inside this applied"),
        applied(family_model("llama"), PINE(), [laid_out(LAYOUT)]),
    ):
        pass
