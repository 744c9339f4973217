"""Optional requirements, imported when first needed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from rag_middle.errors import MissingExtraError


def require(module: str, *, package: str, what: str, extra: str = "demo") -> Any:
    """The module, untyped: it may not be installed where types are checked.

    Args:
        module: its name.
        package: that brings it.
        what: begins the message: what needs it.
        extra: of this package, which brings it too.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or module.split(".")[0] != error.name.split(".")[0]:
            raise  # it is there, and misses something of its own
        raise MissingExtraError(what, package=package, extra=extra) from error
