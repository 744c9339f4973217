"""Errors reach another process as they were raised."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from rag_middle import errors

ARGUMENTS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "MarkerError": (("Stray marker",), {"position": 3, "excerpt": "x"}),
    "ContextOverflowError": (
        (),
        {"prompt_tokens": 90, "max_new_tokens": 20, "context_window": 100, "example": 2},
    ),
    "UnsupportedArchitectureError": (("gpt2",), {"reason": "No.", "alternative": "Other."}),
    "MissingExtraError": (("A chart",), {"package": "matplotlib", "extra": "eval"}),
}


@pytest.mark.parametrize("name", errors.__all__)
def test_an_error_survives_the_way_between_processes(name: str) -> None:
    arguments, named = ARGUMENTS.get(name, (("What was wrong.",), {}))
    error = getattr(errors, name)(*arguments, **named)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error) != ""
    assert vars(again) == vars(error)
