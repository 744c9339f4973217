"""Functions of vLLM's, wrapped."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def hook(owner: Any, **wrappers: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Put ``wrapper(function)`` in place of functions; more than once does no more.

    Args:
        owner: the class or module that has them.
        wrappers: by the name of the function; each takes it, and returns what is called from here
            on.

    Raises:
        AttributeError: there is no such function; nothing has changed then.
    """
    functions = {name: getattr(owner, name) for name in wrappers}
    for name, function in functions.items():
        if not getattr(function, "of_rag_middle", False):
            hooked = functools.wraps(function)(wrappers[name](function))
            hooked.of_rag_middle = True  # type: ignore[attr-defined]
            setattr(owner, name, hooked)
