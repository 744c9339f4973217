"""Checks of settings, as people and JSON may write them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rag_middle.errors import CalibrationConfigError
from rag_middle.plain_data import is_finite_number

__all__ = ["require_numbers", "require_several", "require_whole"]


def require_whole(least: int, **named: Any) -> None:
    """Raise CalibrationConfigError unless all are whole numbers of at least `least`."""
    for name, value in named.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise CalibrationConfigError(
                f"{name} must be a whole number >= {least}, got {value!r}."
            )


def require_several(**named: Any) -> None:
    """Raise CalibrationConfigError unless all are lists with something in them."""
    for name, values in named.items():
        if not isinstance(values, Sequence) or isinstance(values, str) or not values:
            raise CalibrationConfigError(
                f"{name} must be a list of at least one value, got {values!r}."
            )


def require_numbers(**named: Any) -> None:
    """Raise CalibrationConfigError unless all are lists of numbers with something in them."""
    require_several(**named)
    for name, values in named.items():
        for value in values:
            if not is_finite_number(value):
                raise CalibrationConfigError(f"{name} must hold numbers, got {value!r}.")
