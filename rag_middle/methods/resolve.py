"""From what users write to a method object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from rag_middle.errors import MethodConfigError
from rag_middle.methods.base import Method
from rag_middle.methods.compose import Compose
from rag_middle.methods.profiled import method_from_file, preset
from rag_middle.methods.registered import METHODS
from rag_middle.registry import suggest

__all__ = ["resolve_method"]

_PROFILE = "profile"


def resolve_method(
    method: str | Method | Sequence[str | Method], options: Mapping[str, Any] | None = None
) -> Method:
    """Turn a name, a profile, a preset, a composition or an object into a method object.

    Args:
        method: ``"pine"``; ``"profile:PATH"`` (what ``rag-middle calibrate`` wrote);
            ``"positional_hidden_states:llama-2-7b-chat"`` (a preset); ``"lpes+siw"`` or a list (a
            composition); or a method object.
        options: constructor arguments, where `method` is a single name.

    Raises:
        UnknownNameError: no such method or preset, with the nearest names.
        MethodConfigError: options that the method does not have, or that it refuses.
        IncompatibleMethodsError: a composition that is refused.
        ProfileFormatError: a profile that cannot be read.
    """
    if isinstance(method, Method):
        if options:
            raise MethodConfigError(
                f"Options {sorted(options)} were given beside a method object: set them on it."
            )
        return method
    if not isinstance(method, str) or ("+" in method and not _is_profile(method)):
        if options:
            raise MethodConfigError(
                "Options cannot be told apart in a composition: pass method objects instead, e.g. "
                "[LPES(factors=...), SIW(alpha_dense=...)]."
            )
        parts = method.split("+") if isinstance(method, str) else method
        return Compose(methods=tuple(resolve_method(part) for part in parts))
    name, colon, chosen = (part.strip() for part in method.partition(":"))
    if colon and options:
        raise MethodConfigError(
            f"A preset takes no options, and neither does a profile; got {sorted(options)}."
        )
    if colon and name == _PROFILE:
        return method_from_file(chosen)
    kind = METHODS.get(name)
    if colon:
        return preset(name, chosen)
    known = [f.name for f in fields(kind)]  # type: ignore[arg-type]
    for option in options or {}:
        if option not in known:
            raise MethodConfigError(
                f"{name} has no option {option!r}.{suggest(option, known)} Options: "
                f"{', '.join(known) or 'none'}."
            )
    return kind(**dict(options or {}))


def _is_profile(method: str) -> bool:
    """Whether all of it is one profile, whose path may have a ``+``."""
    name, _, path = method.partition(":")
    return name.strip() == _PROFILE and Path(path.strip()).expanduser().is_file()
