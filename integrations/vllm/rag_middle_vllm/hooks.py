"""Functions of vLLM's, wrapped."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def hook(
    owner: Any, name: str, wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> None:
    """Put ``wrapper(function)`` in the place of a function; more than once does no more.

    Args:
        owner: the class or module that has it.
        name: of the function.
        wrapper: takes the function, and returns what is called from here on.

    Raises:
        AttributeError: there is no such function.
    """
    function = getattr(owner, name)
    if not is_hooked(function):
        hooked = functools.wraps(function)(wrapper(function))
        hooked.of_rag_middle = True  # type: ignore[attr-defined]
        setattr(owner, name, hooked)


def is_hooked(function: object) -> bool:
    """Whether a function is one that `hook` has put there."""
    return getattr(function, "of_rag_middle", False)
