"""A hundred requests, good and bad, of which every good one has one right answer."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

from rag_middle.documents import ContextPrompt

DOCUMENT_METHODS = ("no_inter_document_attention", "parallel_context_windows", "rotor")
#: The option of an engine that serves them.
OPTION = {"rag_middle": {"documents": {name: {} for name in DOCUMENT_METHODS}}}


class Mixed(NamedTuple):
    """A request.

    Attributes:
        kind: a method, "none", or what is wrong with it.
        index: of its prompt among the goldens.
        answer: what the engine has to say; None where it has to refuse.
    """

    kind: str
    index: int
    answer: str | None


def mixed(goldens: dict[str, Any], bad: tuple[str, ...], count: int = 100) -> list[Mixed]:
    """Two good requests for each bad one, shuffled."""
    kinds = [*DOCUMENT_METHODS, "none", *DOCUMENT_METHODS, "none"]
    rows = []
    for number in range(count):
        index = number % len(goldens["prompts"])
        if number % 3 == 2:
            rows.append(Mixed(bad[number // 3 % len(bad)], index, None))
        else:
            kind = kinds[number // 3 * 2 % len(kinds) + number % 3]
            rows.append(Mixed(kind, index, goldens[kind]["answers"][index]))
    random.Random(0).shuffle(rows)
    return rows


def prompt(goldens: dict[str, Any], index: int) -> ContextPrompt:
    """A prompt of the goldens as text."""
    text = goldens["texts"][index]
    return ContextPrompt(documents=text["documents"], suffix=text["suffix"])
