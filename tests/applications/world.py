"""Things that do not exist, a question about one of them, and embeddings that need no model."""

import math
import re
from collections.abc import Callable, Sequence
from typing import Any
from zlib import crc32

import pytest

PRICES = {
    "Aldgrove Harfield": "$41",
    "Bramstow Melcroft": "$75",
    "Cranport Tolworth": "$256",
    "Fairholme Silwick": "$64",
    "Glenmoor Birkdale": "$919",
    "Hartley Wenbrook": "$97",
}
NAME = "Glenmoor Birkdale"
QUESTION = f"What is the price of {NAME}?"
ANSWER = f"{NAME}: {PRICES[NAME]}"

TEXTS = {name: f"({name}) The price of {name} is {price}." for name, price in PRICES.items()}
DIMENSIONS = 64


def embedding(text: str) -> list[float]:
    """Which words a text has, of length 1."""
    counts = [0.0] * DIMENSIONS
    for word in re.findall(r"\w+", text.lower()):
        counts[crc32(word.encode()) % DIMENSIONS] += 1.0
    length = math.hypot(*counts) or 1.0
    return [count / length for count in counts]


def is_right(answer: object) -> bool:
    """Whether an answer names the thing with its price."""
    texts: Sequence[object] = answer if isinstance(answer, list) else [answer]
    return all(ANSWER in str(text) for text in texts)


class Applications:
    """A decorator of what builds applications and asks them.

    Attributes:
        cases: each function, and how many documents the model tells apart in each of its calls.
    """

    def __init__(self) -> None:
        self.cases: list[Any] = []

    def __call__(self, name: str, documents: tuple[int, ...] = (6,)) -> Callable[[Any], Any]:
        def declare(build: Any) -> Any:
            self.cases.append(pytest.param(build, documents, id=name))
            return build

        return declare
