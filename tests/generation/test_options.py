"""Options are served or refused, never ignored."""

from __future__ import annotations

from typing import get_type_hints

from rag_middle.generation import GenerationKwargs, GenerationOptions
from rag_middle.options import OPTIONS, AskKwargs


def test_the_typed_keywords_are_the_options() -> None:
    declared = {name: declaration.type for name, declaration in OPTIONS.items()}
    assert get_type_hints(GenerationKwargs) == declared == get_type_hints(GenerationOptions)
    declared.pop("top_k")
    assert get_type_hints(AskKwargs) == declared


def test_defaults_are_allowed_and_described() -> None:
    for declaration in OPTIONS.values():
        declaration.check(declaration.default)
        assert declaration.help.endswith(".")
