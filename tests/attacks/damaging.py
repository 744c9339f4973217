"""JSON as strangers and failing disks leave it: mutations of a valid content."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

__all__ = ["damaged"]

_DEEP = "@deep@"
_STRANGE: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**70, -(2**70), 10**400, 0.5, 1e308, 5e-324),
    *(float("nan"), float("inf"), "", "x", "\ud800", "\x00", [], {}, [[]], [{}], {"0": 1}),
    *([True, "x"], ["a", None], {"a": {"b": []}}, _DEEP),
)


def damaged(content: Any, seed: int) -> bytes:
    """One to three values of `content` replaced, removed, added or renamed; or its text cut.

    Args:
        content: plain data.
        seed: of what is done to it.
    """
    rng = random.Random(seed)
    content = copy.deepcopy(content)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        content = _mutated(content, rng)
    text = json.dumps(content).replace(f'"{_DEEP}"', "[" * 50_000 + "]" * 50_000)
    if rng.random() < 0.05:
        text = text[: rng.randrange(len(text))]
    return text.encode()


def _mutated(content: Any, rng: random.Random) -> Any:
    places = list(_places(content))
    if not places or rng.random() < 0.02:
        return copy.deepcopy(rng.choice(_STRANGE))
    owner, key = rng.choice(places)
    what = rng.random()
    if what < 0.7:
        owner[key] = copy.deepcopy(rng.choice(_STRANGE))
    elif what < 0.85 or isinstance(owner, list):
        del owner[key]
    else:
        owner[rng.choice(("0", "7", "-1", "extra", "", str(2**70)))] = (
            owner.pop(key) if rng.random() < 0.5 else copy.deepcopy(rng.choice(_STRANGE))
        )
    return content


def _places(content: Any) -> Any:
    if isinstance(content, dict | list):
        for key in content if isinstance(content, dict) else range(len(content)):
            yield content, key
            yield from _places(content[key])
