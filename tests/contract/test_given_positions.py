"""Positions that a caller gives, or leaves to the model, which then counts padding too."""

import pytest
import torch
from transformers import PreTrainedModel

from rag_middle.attention import applied
from rag_middle.methods import Method
from tests.conftest import FamilyModel
from tests.contract.cases import ACTIVE, LONG, SHORT
from tests.contract.running import distance, left_padded, logits_under
from tests.tiny_models import seeing_pictures

pytestmark = pytest.mark.thorough

#: As in the authors' code, a group's keys go by the ratio of its first head, and scores with them
#: by more than distances: tokens elsewhere are something else.
BY_POSITION = ("ms_poe_reference_code",)


@pytest.mark.parametrize("first", [None, 0, 9])
@pytest.mark.parametrize("name", [name for name in ACTIVE if name not in BY_POSITION])
@pytest.mark.one_in(6)
def test_where_a_prompt_begins_makes_no_difference(
    family_model: FamilyModel, name: str, first: int | None
) -> None:
    rows_equal_prompts_alone(family_model("llama"), ACTIVE[name], first, axes=0)


@pytest.mark.parametrize(("first", "axes"), [(None, 3), (9, 0), (9, 3)])
@pytest.mark.parametrize("name", [name for name in ACTIVE if name not in BY_POSITION])
@pytest.mark.one_in(6)
def test_nor_does_it_on_several_axes(
    pictures: PreTrainedModel, name: str, first: int | None, axes: int
) -> None:
    rows_equal_prompts_alone(pictures, ACTIVE[name], first, axes)


@pytest.fixture(scope="module")
def pictures() -> PreTrainedModel:
    """A model that sees pictures, whose tokens stand on three axes, of text on each the same."""
    return seeing_pictures()


def rows_equal_prompts_alone(
    model: PreTrainedModel, method: Method, first: int | None, axes: int
) -> None:
    ids, mask = left_padded([LONG, SHORT])
    positions = None if first is None else (mask.cumsum(1) - 1).clamp(min=0) + first
    if positions is not None and axes:
        positions = positions.expand(axes, -1, -1)
    with torch.no_grad():
        with applied(model, method, [LONG.tokens, SHORT.tokens]):
            logits = model(input_ids=ids, attention_mask=mask, position_ids=positions).logits
        for row, prompt in enumerate((LONG, SHORT)):
            alone = logits_under(model, method, prompt)
            # float32 sums in another order, and angles of other positions.
            assert distance(logits[row, -len(alone) :], alone) < 5e-4
