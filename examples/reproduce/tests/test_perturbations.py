"""Perturbations against twins that compute row by row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rag_middle import MethodConfigError, UnsupportedArchitectureError
from rag_middle.attention import applied
from rag_middle.evaluation import KeyValueRetrieval
from rag_middle.generation import RagMiddleModel
from tests.contract.cases import LONG, Prompt
from tests.methods.against_naive import WAYS, assert_equal_to_naive
from tests.reference.perturbations import (
    NaiveCroppedMask,
    NaiveDoubledAttention,
    NaiveMovedPositions,
    NaiveShiftedChannel,
)

pytest.importorskip("yaml", reason="needs pyyaml (extra eval)")
from rag_middle_reproduce.perturbations import (
    CroppedMask,
    DoubledAttention,
    MovedPositions,
    ShiftedChannel,
    perturbations,
)
from rag_middle_reproduce.perturbations.__main__ import accuracies, main


def span(document: int) -> Any:
    return lambda prompt: prompt.layout.documents[document]


def target(document: int, to: str) -> Any:
    def of(prompt: Prompt) -> int:
        start, end = prompt.layout.documents[document]
        if to == "beginning":
            return prompt.layout.prefix_tokens
        return prompt.layout.suffix_start - (end - start)

    return of


@pytest.mark.parametrize(("name", "implementation"), WAYS)
def test_a_cropped_document_sees_itself_and_the_first_token(
    name: str, implementation: str, family_model: Callable[..., Any]
) -> None:
    assert_equal_to_naive(
        family_model(name, implementation),
        CroppedMask(document=1, layers=(0, 1)),
        NaiveCroppedMask,
        span=span(1),
        changed_layers=(0, 1),
    )


@pytest.mark.parametrize(("document", "to"), [(2, "beginning"), (0, "end")])
@pytest.mark.parametrize(("name", "implementation"), WAYS)
@pytest.mark.one_in(3)
def test_the_last_token_alone_sees_a_document_elsewhere(
    name: str, implementation: str, document: int, to: Any, family_model: Callable[..., Any]
) -> None:
    assert_equal_to_naive(
        family_model(name, implementation),
        MovedPositions(document=document, to=to),
        NaiveMovedPositions,
        span=span(document),
        target=target(document, to),
    )


@pytest.mark.parametrize("renormalise", [False, True])
@pytest.mark.parametrize(("name", "implementation"), WAYS)
@pytest.mark.one_in(3)
def test_the_last_token_alone_weighs_a_document_more(
    name: str, implementation: str, renormalise: bool, family_model: Callable[..., Any]
) -> None:
    assert_equal_to_naive(
        family_model(name, implementation),
        DoubledAttention(document=1, factor=3.0, layers=(0, 2), renormalise=renormalise),
        NaiveDoubledAttention,
        span=span(1),
        factor=3.0,
        renormalise=renormalise,
        changed_layers=(0, 2),
    )


@pytest.mark.parametrize(("name", "implementation"), WAYS)
def test_a_channel_of_the_documents_hidden_states_is_moved(
    name: str, implementation: str, family_model: Callable[..., Any]
) -> None:
    assert_equal_to_naive(
        family_model(name, implementation),
        ShiftedChannel(document=1, channel=5, offset=-2.0, layers=(0, 1)),
        NaiveShiftedChannel,
        span=span(1),
        channel=5,
        offset=-2.0,
        changed_layers=(0, 1),
    )


def test_upper_layers_are_left_alone() -> None:
    assert CroppedMask(document=0).layers == tuple(range(8))


def test_what_cannot_be_perturbed_is_refused(family_model: Callable[..., Any]) -> None:
    with pytest.raises(MethodConfigError, match="pass document"):
        CroppedMask()
    with (
        pytest.raises(MethodConfigError, match="channel must be below"),
        applied(family_model("llama"), ShiftedChannel(document=0, channel=5000), [LONG.tokens]),
    ):
        pass
    with pytest.raises(MethodConfigError, match="factor must be at least 0"):
        DoubledAttention(document=0, factor=-1)
    with pytest.raises(MethodConfigError, match="one of beginning, end"):
        MovedPositions(document=0, to="middle")  # type: ignore[arg-type]
    with (
        pytest.raises(MethodConfigError, match="below 3"),
        applied(family_model("llama"), CroppedMask(document=3), [LONG.tokens]),
    ):
        pass
    with (
        pytest.raises(UnsupportedArchitectureError, match="window"),
        applied(family_model("gemma3_text"), MovedPositions(document=0), [LONG.tokens]),
    ):
        pass


def test_curves_by_position(model: RagMiddleModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KeyValueRetrieval, "max_new_tokens", 2)
    task = KeyValueRetrieval(keys=3, identifier_characters=6)
    curves = accuracies(model, task, limit=2, positions=(0, 2), changes=perturbations())
    names = ["as it is", "PE to beginning", "PE to end", "crop mask", "doubled attention"]
    assert list(curves) == names
    assert all(len(values) == 2 for values in curves.values())


def test_the_command_moves_a_channel_too(
    model: RagMiddleModel, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(RagMiddleModel, "from_pretrained", lambda *_, **__: model)
    monkeypatch.setattr(KeyValueRetrieval, "max_new_tokens", 2)
    main("--model mistralai/Mistral-7B-Instruct-v0.2 --channel 213 --try-out".split())
    assert "| channel 3 -0.3 |" in capsys.readouterr().out
