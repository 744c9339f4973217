"""``rag-middle methods``."""

from __future__ import annotations

from dataclasses import fields

import pytest

from rag_middle.methods import METHODS
from tests.cli.conftest import Run


def test_every_method_is_listed_with_what_it_needs(run: Run) -> None:
    shown = " ".join(run("methods").out.replace("│", " ").split())
    for name, kind in METHODS.items():
        assert name in shown
        assert kind.info.paper in shown
        assert " ".join(kind.info.requires.split()[:3]) in shown
        assert " ".join(kind.info.can_hurt_when.split()[:3]) in shown


def test_the_list_as_json(run: Run) -> None:
    listed = run("methods", "--json").json
    assert [each["name"] for each in listed] == list(METHODS.names())
    [pine] = [each for each in listed if each["name"] == "pine"]
    assert pine["paper"] == "arXiv:2407.01100"


@pytest.mark.parametrize("name", METHODS.names())
@pytest.mark.one_in(3)
def test_one_method_is_shown_with_its_options(run: Run, name: str) -> None:
    shown = run("methods", name)
    assert shown.status == 0
    for field in fields(METHODS.get(name)):  # type: ignore[arg-type]
        assert field.name in shown.out


def test_an_option_without_a_default_is_shown_as_such(run: Run) -> None:
    assert "has to be set" in run("methods", "lpes").out
    [factors] = run("methods", "lpes", "--json").json["options"]
    assert (factors["required"], factors["default"]) == (True, None)


def test_presets_are_shown_with_what_they_set(run: Run) -> None:
    shown = run("methods", "positional_hidden_states").out
    [row] = [line for line in shown.splitlines() if "mistral-7b-instruct-v0.2" in line]
    assert "channels=(213,), layers=(10, 11," in row
    presets = run("methods", "positional_hidden_states", "--json").json["presets"]
    assert presets["llama-2-7b-chat"]["channels"] == [2393]
    assert presets["llama-2-7b-chat"]["factor"] == -1
