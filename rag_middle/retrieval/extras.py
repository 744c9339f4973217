"""Optional requirements, imported when first needed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from rag_middle.errors import MissingExtraError

__all__ = ["require"]


def require(module: str, *, package: str, what: str) -> Any:
    """The module, untyped: it may not be installed where types are checked.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or module.split(".")[0] != error.name.split(".")[0]:
            raise  # it is there, and misses something of its own
        raise MissingExtraError(what, package=package, extra="demo") from error
