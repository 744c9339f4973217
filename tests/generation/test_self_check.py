"""A method that reaches nothing is noticed when it is first used."""

from typing import Any

import pytest
from transformers import PreTrainedModel

from rag_middle import ContextPrompt
from rag_middle.attention import AttentionPlan, ModelTraits, model_traits
from rag_middle.errors import MethodConfigError, PatchIneffectiveError
from rag_middle.methods import LPES, resolve_method
from rag_middle.tokens import TokenizedPrompt
from tests.generation.conftest import MakeModel


@pytest.fixture
def passes(llama: PreTrainedModel):  # type: ignore[no-untyped-def]
    """Forward passes of the model, counted."""
    model_traits(llama)  # its first pass is not a check
    seen: list[int] = []
    with llama.register_forward_pre_hook(lambda *_: seen.append(1)):
        yield seen


def test_a_method_without_effect_is_refused(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LPES, "plan", lambda *_: AttentionPlan())
    silent = LPES(factors=1.23)
    with pytest.raises(PatchIneffectiveError, match="rag-middle verify"):
        make_model(method=silent)
    model = make_model()
    with pytest.raises(PatchIneffectiveError):
        model.generate("Why?", method=silent)
    unchecked = make_model(method=silent, self_check=False)
    assert unchecked.generate("Why?", max_new_tokens=1).applied


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("position_interpolation", {"scale": 1e-300}),
        ("positional_hidden_states", {"channels": (3,), "factor": 1e308, "layers": (0,)}),
        ("siw", {"alpha_dense": 1e308, "alpha_sparse": 1.0}),
    ],
)
def test_parameters_that_leave_the_number_format_are_refused(
    make_model: MakeModel, prompt: ContextPrompt, name: str, options: dict[str, Any]
) -> None:
    model = make_model()
    for _ in range(2):  # a refusal is not taken for a check that was passed
        with pytest.raises(MethodConfigError, match=r"1e[-+]30.* NaN or infinite"):
            model.generate(prompt, method=name, method_options=options, max_new_tokens=1)


EXTREME: dict[str, dict[str, Any]] = {
    "position_interpolation": {"scale": 1e-300},
    "attention_buckets": {"base_factors": (1.0, 1e-300)},  # combines rows
}


@pytest.mark.parametrize("name", EXTREME)
@pytest.mark.parametrize(
    "options", [{}, {"stop": "x"}, {"num_beams": 2}, {"temperature": 1.0}], ids=str
)
def test_without_the_check_generation_notices(
    make_model: MakeModel, prompts: list[ContextPrompt], name: str, options: dict[str, Any]
) -> None:
    model = make_model(self_check=False)
    method = resolve_method(name, EXTREME[name])
    with pytest.raises(MethodConfigError, match=r"1e-300.* NaN or infinite.* method='none'"):
        model.batch(prompts[:2], method=method, max_new_tokens=3, **options)
    if "num_beams" not in options:
        with pytest.raises(MethodConfigError, match="NaN or infinite"):
            list(model.stream(prompts[0], method=method, max_new_tokens=3, **options))
    with pytest.raises(MethodConfigError, match="NaN or infinite"):
        model.score(prompts[0], " yes", method=method)


def test_a_method_may_happen_to_change_nothing_on_the_first_prompt(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIW leaves documents alone that are read neither densely nor sparsely, say."""
    plan = LPES.plan

    def only_longer(
        self: LPES, prompts: tuple[TokenizedPrompt, ...], traits: ModelTraits
    ) -> object:
        return plan(self, prompts, traits) if len(prompts[0]) > 26 else AttentionPlan()

    monkeypatch.setattr(LPES, "plan", only_longer)
    make_model(method=LPES(factors=1.29))


def test_a_method_is_checked_once_per_model(
    make_model: MakeModel, prompt: ContextPrompt, passes: list[int]
) -> None:
    method = LPES(factors=1.37)
    model = make_model(method=method)
    assert len(passes) == 2
    make_model(method=LPES(factors=1.37))
    model.generate(prompt, max_new_tokens=1)
    assert len(passes) == 3
    model.generate(prompt, max_new_tokens=1, method=LPES(factors=1.38))
    assert len(passes) == 6
