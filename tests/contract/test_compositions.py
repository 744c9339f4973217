"""Methods that compose, and those that do not."""

from itertools import product

import pytest
import torch

from rag_middle.attention import applied
from rag_middle.errors import IncompatibleMethodsError
from rag_middle.methods import LPES, PINE, SIW, Compose, Method, MsPoE, PositionInterpolation
from tests.conftest import FamilyModel
from tests.contract.cases import ACTIVE, EXAMPLES, LONG, SHORT
from tests.contract.running import distance, generated, prompt_logits, recomputed
from tests.families import FAMILIES

pytestmark = pytest.mark.thorough

COMPOSITIONS = (
    "siw+lpes",
    "siw+positional_hidden_states",
    "siw+ms_poe",
    "siw+position_interpolation",
    "siw+self_extend",
    "lpes+positional_hidden_states",
    "position_interpolation+positional_hidden_states",
    "siw+lpes+positional_hidden_states",
)
REPRESENTATIVES = ("llama", "qwen3", "gemma2", "gpt_oss", "smollm3")


def composed(names: tuple[str, ...], neutral: str | None = None) -> Compose:
    """The active methods of these names, one of them in its neutral form."""
    return Compose(methods=tuple(EXAMPLES[n].neutral if n == neutral else ACTIVE[n] for n in names))


@pytest.mark.pairs(("family", "composition"), list(product(REPRESENTATIVES, COMPOSITIONS)))
@pytest.mark.one_in(6)
def test_each_part_of_a_composition_takes_effect(
    family: str, composition: str, family_model: FamilyModel
) -> None:
    model, names = family_model(family), tuple(composition.split("+"))

    def logits(method: Method) -> torch.Tensor:
        with applied(model, method, [LONG.tokens]):
            return prompt_logits(model, LONG)

    together = logits(composed(names))
    for name in names:
        rest = tuple(other for other in names if other != name)
        without = logits(composed(rest))
        assert distance(together, without) > 0.01
        # A neutral part is as good as none.
        assert distance(logits(composed(names, neutral=name)), without) < FAMILIES[family].tolerance
    assert torch.equal(logits(composed(names[::-1])), together)


@pytest.mark.pairs(("family", "composition"), list(product(REPRESENTATIVES, COMPOSITIONS)))
@pytest.mark.one_in(6)
def test_compositions_keep_the_contract_of_generation(
    family: str, composition: str, family_model: FamilyModel
) -> None:
    model, method = family_model(family), composed(tuple(composition.split("+")))
    with applied(model, method, [SHORT.tokens, LONG.tokens]):
        together, logits = generated(model, [SHORT, LONG])
    for row, prompt in enumerate((SHORT, LONG)):
        with applied(model, method, [prompt.tokens]):
            alone, alone_logits = generated(model, [prompt])
        with applied(model, method, [prompt.tokens]):
            at_once = recomputed(model, prompt, alone[0])
        assert torch.equal(together[row], alone[0])
        assert distance(logits[row], alone_logits[0]) < FAMILIES[family].tolerance
        assert distance(alone_logits[0], at_once) < FAMILIES[family].tolerance


def test_one_method_twice_in_different_layers(family_model: FamilyModel) -> None:
    model = family_model("llama")
    parts = (
        PositionInterpolation(scale=1.3, layers=(0,)),
        PositionInterpolation(scale=1.5, layers=(2,)),
    )
    with applied(model, Compose(methods=parts), [LONG.tokens]):
        in_parts = prompt_logits(model, LONG)
    with applied(model, LPES(factors=(1.3, 1.0, 1.5)), [LONG.tokens]):
        assert torch.equal(prompt_logits(model, LONG), in_parts)


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        (LPES(factors=1.5), PositionInterpolation(scale=1.5), "positions of layer 0"),
        (MsPoE(), LPES(factors=1.5), "positions of layer 2"),
        (SIW(), SIW(alpha_dense=0.5), "weights of layer 0"),
        (
            ACTIVE["positional_hidden_states"],
            ACTIVE["positional_hidden_states_wide"],
            "hidden of layer 0",
        ),
    ],
)
def test_two_claims_on_a_layer_are_refused_when_the_model_is_known(
    first: Method, second: Method, reason: str, family_model: FamilyModel
) -> None:
    with (
        pytest.raises(IncompatibleMethodsError, match=reason),
        applied(family_model("llama"), Compose(methods=(first, second)), [LONG.tokens]),
    ):
        pass


@pytest.mark.parametrize("other", [name for name in EXAMPLES if name not in ("none", "compose")])
def test_pine_composes_with_nothing_that_changes_anything(other: str) -> None:
    with pytest.raises(IncompatibleMethodsError, match="pine"):
        Compose(methods=(PINE(), EXAMPLES[other].neutral))
