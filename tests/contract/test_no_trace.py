"""A method leaves a model exactly as it found it, whatever happened in between."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

from rag_middle.attention import applied
from rag_middle.errors import RagMiddleError, UnsupportedArchitectureError
from rag_middle.methods import LPES, PositionalHiddenStates
from tests.conftest import FamilyModel
from tests.contract.cases import ACTIVE, EXAMPLES, LONG, expected_refusal
from tests.contract.running import assert_refused, generated, in_thread, logits_under, prompt_logits
from tests.contract.snapshot import snapshot
from tests.families import FAMILIES

pytestmark = pytest.mark.thorough

ONE_EACH = tuple(next(iter(example.active)) for example in EXAMPLES.values() if example.active)

#: The first implementation of each family; the seam is the same for the others.
TAKEN = [
    (family, method)
    for family in FAMILIES
    for method in ONE_EACH
    if expected_refusal(ACTIVE[method], FAMILIES[family].traits, family) is None
]
REFUSED = [
    (family, method)
    for family in FAMILIES
    for method in ONE_EACH
    if expected_refusal(ACTIVE[method], FAMILIES[family].traits, family) is not None
]


class Stop(BaseException):
    """Like KeyboardInterrupt: no ``except Exception`` on the way catches it."""


@contextmanager
def unchanged(model: Any) -> Iterator[None]:
    """The block must leave the model and its logits as they were, bit for bit."""
    # Twice: some rotary modules settle in their first pass.
    prompt_logits(model, LONG)
    logits = prompt_logits(model, LONG)
    before = snapshot(model)
    yield
    after = snapshot(model)
    assert before.keys() == after.keys()
    assert {name: value for name, value in after.items() if value != before[name]} == {}
    assert torch.equal(prompt_logits(model, LONG), logits)


@contextmanager
def raising(module: nn.Module, error: BaseException, on_call: int = 1) -> Iterator[None]:
    """Make a module raise when it is called for the `on_call`-th time."""
    calls = 0

    def count_and_raise(*_: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == on_call:
            raise error

    with module.register_forward_pre_hook(count_and_raise):
        yield


def attention_of(model: nn.Module, layer: int) -> nn.Module:
    """The attention module of a layer."""
    modules = [m for m in model.modules() if type(m).__name__.endswith("Attention")]
    return modules[min(layer, len(modules) - 1)]


def projection_of(attention: nn.Module) -> nn.Module:
    """The first linear map inside an attention module."""
    return next(
        m for m in attention.modules() if type(m).__name__ in ("Linear", "Conv1D", "AutoBitLinear")
    )


@pytest.mark.pairs(("family", "method"), TAKEN, by="group")
@pytest.mark.one_in(6)
def test_nothing_is_left_after_generation(
    family: str, method: str, family_model: FamilyModel
) -> None:
    model = family_model(family)
    with unchanged(model), applied(model, ACTIVE[method], [LONG.tokens]):
        generated(model, [LONG], steps=2)


@pytest.mark.pairs(("family", "method"), TAKEN, by="group")
@pytest.mark.one_in(12)
def test_nothing_is_left_after_an_exception_in_the_prompt(
    family: str, method: str, family_model: FamilyModel
) -> None:
    model = family_model(family)
    projection = projection_of(attention_of(model, 1))
    # Models with one attention layer are stopped in that layer.
    with (
        unchanged(model),
        pytest.raises(Stop, match="in the projection"),
        applied(model, ACTIVE[method], [LONG.tokens]),
        raising(projection, Stop("in the projection")),
    ):
        generated(model, [LONG], steps=2)


@pytest.mark.pairs(("family", "method"), TAKEN, by="group")
@pytest.mark.one_in(12)
def test_nothing_is_left_after_an_exception_while_decoding(
    family: str, method: str, family_model: FamilyModel
) -> None:
    model = family_model(family)
    with (
        unchanged(model),
        pytest.raises(Stop, match="in the output layer"),
        applied(model, ACTIVE[method], [LONG.tokens]),
        raising(model.get_output_embeddings(), Stop("in the output layer"), on_call=2),
    ):
        generated(model, [LONG], steps=3)


@pytest.mark.pairs(("family", "method"), REFUSED, by="group")
@pytest.mark.one_in(4)
def test_nothing_is_left_after_a_refusal(
    family: str, method: str, family_model: FamilyModel
) -> None:
    model = family_model(family)
    with unchanged(model):
        assert_refused(model, ACTIVE[method], UnsupportedArchitectureError)


@pytest.mark.parametrize("family", ["llama", "qwen3_next"])
@pytest.mark.parametrize(
    ("error", "run"),
    [
        ("2 layouts", lambda model: generated(model, [LONG], steps=1)),
        ("whole prompt", lambda model: model(LONG.ids[:, :5])),
    ],
)
def test_nothing_is_left_after_input_that_does_not_fit(
    family: str, error: str, run: Callable[[Any], Any], family_model: FamilyModel
) -> None:
    model = family_model(family)
    prompts = [LONG.tokens] * (2 if "2" in error else 1)
    with (
        unchanged(model),
        pytest.raises(RagMiddleError, match=error),
        applied(model, ACTIVE["positional_hidden_states"], prompts),
    ):
        run(model)


@pytest.mark.parametrize(
    "method",
    [PositionalHiddenStates(channels=(10**6,)), LPES(factors=(1.5,) * 4)],
    ids=lambda method: type(method).__name__,
)
def test_nothing_is_left_after_parameters_that_do_not_fit(method: Any, llama: Any) -> None:
    with unchanged(llama):
        assert_refused(llama, method, RagMiddleError)


def test_modules_stay_in_training_or_evaluation() -> None:
    model = FAMILIES["llama"].build().train()  # new: its traits are not known yet
    frozen = attention_of(model, 1).eval()
    modes = [module.training for module in model.modules()]
    with applied(model, ACTIVE["positional_hidden_states"], [LONG.tokens]):
        assert not frozen.training
        prompt_logits(model, LONG)
    assert [module.training for module in model.modules()] == modes


@pytest.mark.pairs(("family", "method"), TAKEN, by="group")
@pytest.mark.one_in(12)
def test_other_threads_see_the_unmodified_model(
    family: str, method: str, family_model: FamilyModel
) -> None:
    model = family_model(family)
    plain = prompt_logits(model, LONG)
    seen = []

    def look_from_elsewhere(*_: Any) -> None:
        # The very middle of a layer: attention has begun and not yet attended.
        handle.remove()
        seen.append(in_thread(lambda: prompt_logits(model, LONG)))

    with applied(model, ACTIVE[method], [LONG.tokens]):
        before = in_thread(lambda: prompt_logits(model, LONG))
        projection = projection_of(attention_of(model, 1))
        handle = projection.register_forward_pre_hook(look_from_elsewhere)
        interrupted = prompt_logits(model, LONG)
        after = in_thread(lambda: prompt_logits(model, LONG))
    undisturbed = logits_under(model, ACTIVE[method])

    assert len(seen) == 1
    assert all(torch.equal(logits, plain) for logits in (before, *seen, after))
    assert torch.equal(interrupted, undisturbed)


@pytest.mark.parametrize("family", ["llama", "hunyuan_v1_dense", "smollm3", "gpt_neox"])
def test_a_model_is_examined_while_another_thread_uses_it(family: str) -> None:
    fresh = FAMILIES[family].build  # a model's traits are found at its first request
    expected = logits_under(fresh(), ACTIVE["ms_poe"])
    model = fresh()
    plain = prompt_logits(model, LONG)
    seen = []

    def look_from_elsewhere(*_: Any) -> None:
        if not seen:
            seen.append(None)
            seen[0] = in_thread(lambda: prompt_logits(model, LONG))

    handle = projection_of(attention_of(model, 1)).register_forward_pre_hook(look_from_elsewhere)
    with applied(model, ACTIVE["ms_poe"], [LONG.tokens]):
        assert torch.equal(seen[0], plain)
        handle.remove()
        assert torch.equal(prompt_logits(model, LONG), expected)


def test_a_refused_early_exit_leaves_all_layers(llama: Any) -> None:
    """transformers puts the config back only where the assistant's pass succeeds."""
    with (
        unchanged(llama),
        pytest.raises(RagMiddleError),
        torch.no_grad(),
        applied(llama, ACTIVE["pine"], [LONG.tokens]),
    ):
        llama.generate(
            input_ids=LONG.ids, max_new_tokens=5, do_sample=False, assistant_early_exit=1
        )
