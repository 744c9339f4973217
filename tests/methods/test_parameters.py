"""Methods check their own parameters and say what was wrong with them."""

from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from math import nan
from typing import Any

import pytest

from rag_middle.attention import model_traits
from rag_middle.errors import MethodConfigError
from rag_middle.layout import PromptLayout
from rag_middle.methods import (
    DSAS,
    LPES,
    METHODS,
    PINE,
    SIW,
    AttentionCalibration,
    Compose,
    DySCO,
    Method,
    MoICE,
    MsPoE,
    NoMethod,
    PositionalHiddenStates,
    PositionInterpolation,
    SelfExtend,
    ZeroTuning,
)
from rag_middle.profiles import published_profiles
from tests.conftest import FamilyModel
from tests.prompts import laid_out

PROMPT = laid_out(PromptLayout(20, ((2, 6), (6, 11), (11, 17))))

WRONG: tuple[tuple[Callable[..., Method], dict[str, Any], str], ...] = (
    # Every rule once
    (PositionInterpolation, {"scale": 0}, "scale must be above 0, got 0"),
    (PositionInterpolation, {"scale": nan}, "scale must be a finite number, got nan"),
    (PositionInterpolation, {"scale": True}, "scale must be a finite number, got True"),
    (PositionInterpolation, {"scale": 2, "layers": 3}, "layers must be several indices, got 3"),
    (PositionInterpolation, {"scale": 2, "layers": (0, -1)}, r"layers\[1\] must be a whole"),
    (MsPoE, {"first_layer": 1.5}, "first_layer must be a whole number >= 0, got 1.5"),
    (MsPoE, {"head_order": "rank"}, "one of awareness, sequential, random, entropy, got 'rank'"),
    (MsPoE, {"reference_code": "no"}, "reference_code must be true or false, got 'no'"),
    (LPES, {"factors": ()}, r"factors must be 1 or more factors, got \(\)"),
    (LPES, {"factors": (1.2, 0.0)}, r"factors\[1\] must be above 0, got 0.0"),
    (LPES, {"factors": 10**400}, "factors must be a finite number"),
    (AttentionCalibration, {"dummy": 3}, "dummy must be text, got 3"),
    (PositionalHiddenStates, {"channels": (4, 4)}, "channels must be different channels"),
    (SIW, {"top_share": 1}, "top_share must be above 0 and below 1, got 1"),
    (DSAS, {"beta": 1.5}, "beta must be above 0 and at most 1, got 1.5"),
    # What other options allow
    (SIW, {"dense_areas": {0: ()}}, r"dense_areas\[0\] must be 1 or more flags"),
    (DySCO, {"heads": ((0, 1, 2),)}, "heads must be pairs"),
    # What two options say together
    (ZeroTuning, {"factor": (1, 2), "heads": (0,)}, "2 factors for 1 heads"),
    (MsPoE, {"min_ratio": 2.0}, "min_ratio must be at most max_ratio, got 2.0 and 1.8"),
    (SelfExtend, {"group": 8, "window": 4}, "group must not be larger than window, got 8 and 4"),
    (MoICE, {"base_factors": (1, 2), "routers": "."}, "goes with routers='uniform'"),
    (MoICE, {"routers": "uniform", "top_k": 1}, "needs routers to choose by"),
    (Compose, {"methods": PINE()}, "methods must be several method objects, got PINE"),
)


@pytest.mark.parametrize(("kind", "parameters", "message"), WRONG)
def test_wrong_parameters_are_refused_with_the_method_and_the_value(
    kind: type[Method], parameters: dict[str, Any], message: str
) -> None:
    with pytest.raises(MethodConfigError, match=message) as error:
        kind(**parameters)
    assert str(error.value).startswith(f"{kind.__name__}: ")


@pytest.mark.parametrize(
    "method",
    [PositionInterpolation(scale=1.5, layers=[0, 1]), LPES(factors=[1.0, 2.0]), MsPoE(layers=[1])],  # type: ignore[arg-type]
)
def test_lists_become_tuples_so_that_methods_can_be_compared_and_hashed(method: Method) -> None:
    assert hash(method) == hash(replace(method))  # type: ignore[type-var]
    assert method == replace(method)  # type: ignore[type-var]


@pytest.mark.parametrize("name", METHODS)
def test_methods_are_frozen_and_keyword_only(name: str) -> None:
    kind = METHODS.get(name)
    with pytest.raises(TypeError):
        kind(1)  # type: ignore[call-arg]
    method = kind(methods=(NoMethod(),)) if name == "compose" else kind.example()  # type: ignore[call-arg]
    with pytest.raises(FrozenInstanceError):
        method.anything = 1  # type: ignore[attr-defined]
    assert method.name == name == kind.name


def test_which_methods_need_documents() -> None:
    without = {
        name
        for name, kind in METHODS.items()
        if name != "compose" and not kind.example().needs_documents
    }
    of_positions = {"lpes", "ms_poe", "position_interpolation", "self_extend"}
    of_tokens = {"positional_hidden_states", "zero_tuning", "prompt_repetition", "dysco"}
    assert without == {"none", "attention_buckets", "moice"} | of_positions | of_tokens


# --- what parameters become on a model --------------------------------------------------------


def test_ms_poe_as_its_authors_coded_it(family_model: FamilyModel) -> None:
    traits = model_traits(family_model("llama"))  # four query heads, two key heads
    method = MsPoE(min_ratio=1.0, max_ratio=1.6, reference_code=True)
    assert method.ratios(traits.layers[2]) == pytest.approx((1.0, 1.15, 1.3, 1.45))


def test_lpes_from_a_curve() -> None:
    line = LPES.from_curve([(0, 1.0), (1, 1.2), (2, 1.4), (3, 1.6)], num_layers=4)
    assert line.factors == pytest.approx((1.0, 1.2, 1.4, 1.6))
    with pytest.raises(MethodConfigError, match=r"LPES: .* strictly rising"):
        LPES.from_curve([(0, 1.0), (1, 1.2), (1, 1.4), (3, 1.6)], num_layers=4)


def test_siw_takes_the_middle_half_unless_told(family_model: FamilyModel) -> None:
    traits = replace(model_traits(family_model("llama")), num_layers=8)
    traits = replace(traits, layers=dict.fromkeys(range(8), traits.layers[0]))
    assert sorted(SIW().plan((PROMPT,), traits).layers) == [2, 3, 4, 5]
    assert sorted(SIW(layers=(7, 0)).plan((PROMPT,), traits).layers) == [0, 7]
    areas = {1: (True,), 6: (False,)}
    assert sorted(SIW(dense_areas=areas).plan((PROMPT,), traits).layers) == [1, 6]
    assert sorted(SIW(dense_areas=areas, layers=(6, 7)).plan((PROMPT,), traits).layers) == [6]
    with pytest.raises(MethodConfigError, match="no layer would change"):
        SIW(dense_areas=areas, layers=(2,)).plan((PROMPT,), traits)


# --- presets ----------------------------------------------------------------------------------


def test_presets_are_the_papers_table() -> None:
    table = {
        name: (*set_to["channels"], set_to["factor"], set_to["layers"][0], set_to["layers"][-1])
        for name, profile in published_profiles("positional_hidden_states").items()
        for set_to in [profile.options]
    }
    assert table == {
        "llama-2-7b-chat": (2393, -1, 10, 25),
        "llama-2-13b-chat": (4283, -1, 10, 34),
        "vicuna-7b-v1.5-16k": (2393, 0, 10, 25),
        "vicuna-13b-v1.5-16k": (4923, 0, 10, 34),
        "mistral-7b-instruct-v0.2": (213, 0, 10, 25),
        "gemma-1.1-7b-it": (1665, 0, 10, 22),
        "qwen1.5-7b-chat": (1081, 0.2, 10, 25),
    }
