"""Packages whose names are imported when they are first used.

``import rag_middle`` and commands that run no model must not wait for PyTorch, which takes seconds
to import; and ``from rag_middle import RagMiddleModel`` must work all the same.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module

__all__ = ["names_on_first_use"]


def names_on_first_use(
    package: str, modules: Mapping[str, Iterable[str]]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` for a package (PEP 562).

    Args:
        package: its ``__name__``.
        modules: names that it exports, by the module below it that has them. None of the names
            may be that of a module: importing the module would put it in the name's place.
    """
    homes = {name: module for module, names in modules.items() for name in names}

    def get(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value: object = getattr(import_module(f"{package}.{homes[name]}"), name)
        vars(sys.modules[package])[name] = value  # the next access finds it without coming here
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return get, names
