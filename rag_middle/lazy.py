"""Packages whose names are imported when they are first used.

``import rag_middle`` and commands that run no model must not wait for PyTorch, which takes seconds
to import; and ``from rag_middle import RagMiddleModel`` must work all the same.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path


def names_on_first_use(package: str) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` for a package (PEP 562).

    Its names are those that it imports for type checkers, under ``if TYPE_CHECKING:``, which are
    read in its source: type checkers need them there, so no second list can differ from them.

    Args:
        package: its ``__name__``. None of the names may be that of a module below it: importing the
            module would put it in the name's place.
    """
    module = sys.modules[package]
    homes = {
        alias.name: node.module
        for block in ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8")).body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in block.body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }

    def get(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value: object = getattr(import_module(homes[name]), name)
        setattr(module, name, value)  # the next access finds it without coming here
        return value

    return get, lambda: sorted({*vars(module), *homes})
