"""Options that check themselves: a field of a method names the rule that its values follow.

A rule is called with the option's name, as messages have it, and a value. It returns the value as
the method keeps it (lists become tuples) or raises `MethodConfigError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import field
from math import inf, isfinite
from typing import Any, NoReturn, get_args

from rag_middle.errors import MethodConfigError
from rag_middle.plain_data import is_finite_number

Rule = Callable[[str, Any], Any]


def option(default: Any, rule: Rule, *, neutral: object = ...) -> Any:
    """A field of a method with a rule, which a default of ``None`` need not follow.

    Args:
        default: its value where nobody sets it.
        rule: that values follow.
        neutral: the value that changes nothing, if there is one (`Method.is_neutral`).
    """
    return field(default=default, metadata={"rule": rule, "neutral": neutral})


def no_default(
    advice: str, *, example: object, rule: Rule | None = None, neutral: object = ...
) -> Any:
    """A field of a method without a value that suits models in general: it has to be set.

    A guess would run and do harm without a word. So making the method without the option
    raises `MethodConfigError`, whichever way the method is named, before a model is loaded.

    Args:
        advice: the message: what the option is fitted to, and how to come by a value.
        example: a value that every model of a fitting build takes (`Method.example`).
        rule: that values follow.
        neutral: as for `option`.
    """

    def refuse() -> NoReturn:
        raise MethodConfigError(advice)

    metadata = {"example": example, "rule": rule, "neutral": neutral}
    return field(default_factory=refuse, metadata=metadata)


def number(
    *, above: float = -inf, least: float = -inf, below: float = inf, most: float = inf
) -> Rule:
    """A finite number between bounds, `least` and `most` among them."""
    words = {"above": above, "at least": least, "below": below, "at most": most}
    bounds = " and ".join(f"{word} {bound:g}" for word, bound in words.items() if isfinite(bound))

    def check(name: str, value: Any) -> Any:
        if not is_finite_number(value):
            raise MethodConfigError(f"{name} must be a finite number, got {value!r}.")
        if not (above < value < below and least <= value <= most):
            raise MethodConfigError(f"{name} must be {bounds}, got {value}.")
        return value

    return check


def optional(rule: Rule) -> Rule:
    """``None``, or what a rule allows: for options whose default is another value."""
    return lambda name, value: None if value is None else rule(name, value)


def whole(least: int) -> Rule:
    """A whole number from `least` on."""

    def check(name: str, value: Any) -> Any:
        if not isinstance(value, int) or not is_finite_number(value) or value < least:
            raise MethodConfigError(f"{name} must be a whole number >= {least}, got {value!r}.")
        return value

    return check


def one_of(literal: Any) -> Rule:
    """One of the values of a ``Literal`` type."""
    values = get_args(literal)

    def check(name: str, value: Any) -> Any:
        if value not in values:
            raise MethodConfigError(
                f"{name} must be one of {', '.join(map(str, values))}, got {value!r}."
            )
        return value

    return check


def several(rule: Rule, what: str, *, at_least: int = 0, distinct: bool = False) -> Rule:
    """Several values that follow a rule each: a tuple.

    Args:
        rule: of each value.
        what: the values are called in messages.
        at_least: values there must be.
        distinct: whether a value may be there once only.
    """

    def check(name: str, values: Any) -> Any:
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise MethodConfigError(f"{name} must be several {what}, got {values!r}.")
        kept = tuple(rule(f"{name}[{i}]", value) for i, value in enumerate(values))
        if len(kept) < at_least:
            raise MethodConfigError(f"{name} must be {at_least} or more {what}, got {kept}.")
        if distinct and len(set(kept)) < len(kept):
            raise MethodConfigError(f"{name} must be different {what}, got {kept}.")
        return kept

    return check


#: 0-based layers, heads or channels.
INDICES = several(whole(0), "indices")


def one_or_several(rule: Rule, what: str) -> Rule:
    """One value, or a tuple of at least one."""
    of_several = several(rule, what, at_least=1)

    def check(name: str, value: Any) -> Any:
        alone = isinstance(value, str) or not isinstance(value, Iterable)
        return (rule if alone else of_several)(name, value)

    return check


def text(name: str, value: Any) -> Any:
    """A string."""
    if not isinstance(value, str):
        raise MethodConfigError(f"{name} must be text, got {value!r}.")
    return value


def truth(name: str, value: Any) -> Any:
    """True or false."""
    if not isinstance(value, bool):
        raise MethodConfigError(f"{name} must be true or false, got {value!r}.")
    return value
