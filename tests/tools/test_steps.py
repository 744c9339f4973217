"""What checks of forms of answers take grows as the forms do, before any limit of the engine."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from rag_middle.errors import UnsupportedGenerationError
from rag_middle.tools.grammars import answer_grammar

MOST_CALLS = 15_000_000


def _calls(function: Callable[[], object]) -> int:
    """How many functions are called, C's included; no more than too many."""
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")
        if calls > MOST_CALLS:
            raise TimeoutError

    sys.setprofile(count)
    try:
        function()
    except TimeoutError:
        pass
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize(
    "schema",
    [
        {"$defs": {"a": {"oneOf": [{"$ref": "#/$defs/a"} for _ in range(4000)]}}, "type": "string"},
        {"$defs": {"a": {"anyOf": [{"type": "string"} for _ in range(2000)]}}}
        | {"oneOf": [{"$ref": "#/$defs/a"} for _ in range(2900)]},
        {"$defs": {"b": {"anyOf": [{"enum": [[1]] * 10_000}]}}}
        | {"anyOf": [{"$ref": "#/$defs/b/anyOf/" + "0" * n} for n in range(1, 1500)]},
        {"oneOf": [True] * 100_000},
        {"$ref": "#" + "/$defs/a" * 400_000},
        {"properties": {"a" * 2_000_000: {}}, "additionalProperties": 1},
    ],
    ids="itself definition references true path name".split(),
)
def test_schemas_are_checked_in_few_steps(schema: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rag_middle.tools.alternatives._MOST_STEPS", 50_000, raising=False)

    def check() -> None:
        with suppress(UnsupportedGenerationError):
            answer_grammar({"type": "json_schema", "json_schema": {"schema": schema}})

    assert _calls(check) < MOST_CALLS


@pytest.mark.parametrize("begun", ["[" * 199, "\\p{" * 66], ids=["class", "property"])
def test_a_pattern_of_what_does_not_end_is_gone_through_once(begun: str) -> None:
    pattern = f"{begun}|" * 500 + "\\"  # 100,000 characters: minutes by their square
    started = time.process_time()
    with suppress(UnsupportedGenerationError):
        answer_grammar({"type": "json_schema", "json_schema": {"schema": {"pattern": pattern}}})
    assert time.process_time() - started < 1


@pytest.mark.parametrize("index", ["\u00b2", "9" * 5000, "0" * 10])
def test_references_to_what_is_no_index_are_refused(index: str) -> None:
    schema = {"$ref": f"#/anyOf/{index}", "anyOf": [{}]}
    with pytest.raises(UnsupportedGenerationError, match="with a reference to"):
        answer_grammar({"type": "json_schema", "json_schema": {"schema": schema}})
