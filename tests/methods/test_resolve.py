"""From a name to a method."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from rag_middle.errors import IncompatibleMethodsError, MethodConfigError, UnknownNameError
from rag_middle.methods import (
    LPES,
    METHODS,
    PINE,
    SIW,
    Compose,
    Method,
    MsPoE,
    NoMethod,
    PositionalHiddenStates,
    PositionInterpolation,
    Runner,
    SelfExtend,
    ZeroTuning,
    resolve_method,
)
from rag_middle.methods.resolve import preset
from rag_middle.tokens import TokenizedPrompt

FITTED = {
    "lpes": "needs factors fitted to the model: fit them with `rag-middle calibrate --method lpes`",
    "positional_hidden_states": "needs the channel that carries position in this model",
    "position_interpolation": "needs a scale: the length you want over",
    "moice": "needs training: pass routers",
    "zero_tuning": "needs a factor fitted to model and task",
    "measured_order": "needs the accuracy by position of your model",
    "dysco": "needs the model's retrieval heads: pass heads",
}


@pytest.mark.parametrize("name", FITTED)
def test_what_has_to_be_fitted_has_no_default(name: str) -> None:
    for make in (METHODS.get(name), lambda: resolve_method(name), lambda: resolve_method([name])):
        with pytest.raises(MethodConfigError, match=FITTED[name]):
            make()


def test_only_methods_whose_parameters_have_to_be_fitted_are_refused_without() -> None:
    for name in METHODS:
        if name not in (*FITTED, "compose"):
            assert resolve_method(name) == METHODS.get(name).example()


@pytest.mark.parametrize(
    ("given", "options", "expected"),
    [
        ("lpes", {"factors": 1.2}, LPES(factors=1.2)),
        (" ms_poe ", {"first_layer": 0}, MsPoE(first_layer=0)),
        ("ms_poe+siw", None, Compose(methods=(MsPoE(), SIW()))),
        (["ms_poe", SIW(top_share=0.5)], None, Compose(methods=(MsPoE(), SIW(top_share=0.5)))),
        (PINE(), None, PINE()),
        (
            "positional_hidden_states:vicuna-7b-v1.5-16k",
            None,
            preset("positional_hidden_states", "vicuna-7b-v1.5-16k"),
        ),
        (
            "siw+positional_hidden_states:llama-2-7b-chat",
            None,
            Compose(methods=(SIW(), preset("positional_hidden_states", "llama-2-7b-chat"))),
        ),
    ],
)
def test_what_users_write(given: Any, options: dict[str, Any] | None, expected: Method) -> None:
    assert resolve_method(given, options) == expected


@pytest.mark.parametrize(
    ("given", "options", "error", "message"),
    [
        ("mspoe", None, UnknownNameError, "Did you mean 'ms_poe'"),
        ("", None, MethodConfigError, "method must be a name"),
        ("lpes", {"factor": 1.2}, MethodConfigError, "no option 'factor'. Did you mean 'factors'"),
        (PINE(), {"scale": 2}, MethodConfigError, "beside a method object"),
        ("lpes+siw", {"factors": 2}, MethodConfigError, "cannot be told apart"),
        ("pine:fast", None, MethodConfigError, "pine has no presets"),
        (
            "positional_hidden_states:llama-2-7b-chat",
            {"factor": 0},
            MethodConfigError,
            "preset takes no options",
        ),
        ("positional_hidden_states:gpt", None, UnknownNameError, "Unknown .* preset 'gpt'"),
        ("compose", None, MethodConfigError, "at least one method"),
        ("pine+siw", None, IncompatibleMethodsError, "pine does not compose with siw"),
    ],
)
def test_what_cannot_be_resolved(
    given: Any, options: dict[str, Any] | None, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        resolve_method(given, options)


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        (
            (PINE(), PositionalHiddenStates(channels=(1,))),
            "pine does not compose with positional_hidden_states",
        ),
        ((Compose(methods=(PINE(),)), SIW()), "pine does not compose with siw"),
        (
            (MsPoE(), Compose(methods=(SIW(), PositionalHiddenStates(channels=(1,))))),
            "ms_poe does not compose with positional_hidden_states",
        ),
        ((ZeroTuning(factor=2), SelfExtend()), "zero_tuning does not compose with self_extend"),
    ],
)
def test_refused_compositions_are_named(methods: tuple[Method, ...], message: str) -> None:
    for order in (methods, methods[::-1]):
        with pytest.raises(IncompatibleMethodsError, match=message):
            Compose(methods=order)


def test_a_composition_is_what_its_parts_are() -> None:
    assert Compose(methods=(LPES(factors=1), PositionInterpolation(scale=1))).is_neutral
    assert not Compose(methods=(LPES(factors=1), SIW())).is_neutral
    assert Compose(methods=(LPES(factors=1.5), SIW())).needs_documents
    assert Compose(methods=(NoMethod(), PINE())).needs_documents
    assert not Compose(methods=(LPES(factors=1.5), NoMethod())).needs_documents


def test_a_composition_arranges_documents_in_turn() -> None:
    class Reversing(NoMethod):
        def arrange(self, prompt: TokenizedPrompt, runner: Runner) -> Sequence[int]:
            return range(len(prompt.layout.documents))[::-1]

    class LongestFirst(NoMethod):
        def arrange(self, prompt: TokenizedPrompt, runner: Runner) -> Sequence[int]:
            lengths = prompt.layout.document_lengths
            return sorted(range(len(lengths)), key=lambda index: -lengths[index])

    prompt = TokenizedPrompt.assembled(
        prefix=(1,),
        documents=((2, 2), (3,), (4, 4, 4), (5,)),
        suffix=(6,),
        document_ids=(None,) * 4,
    )

    def arranged(*methods: Method) -> list[int]:
        runner: Any = None  # neither looks at the model
        composition = Compose(methods=methods)
        assert composition.arranges
        return list(composition.arrange(prompt, runner))

    assert arranged(Reversing(), LongestFirst()) == [2, 0, 3, 1]
    assert arranged(LongestFirst(), Reversing()) == [3, 1, 0, 2]


def test_only_one_method_of_a_composition_combines_forward_passes() -> None:
    class Averaging(NoMethod):
        def combine(self, logits: Tensor) -> Tensor:
            return logits.mean(dim=-2)

    one = Compose(methods=(LPES(factors=1.5), Averaging()))
    assert one.combines
    assert one.combine(torch.tensor([[1.0, 3.0], [3.0, 5.0]])).tolist() == [2.0, 4.0]
    assert not Compose(methods=(LPES(factors=1.5),)).combines
    with pytest.raises(IncompatibleMethodsError, match="none and none do not compose"):
        Compose(methods=(Averaging(), Averaging()))
