"""From what users write to a method object."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from rag_middle.errors import MethodConfigError, RagMiddleError, UnknownNameError
from rag_middle.methods.base import METHODS, Method, Provenance
from rag_middle.methods.compose import Compose
from rag_middle.plain_data import check_keywords
from rag_middle.profiles import Profile, read_profile, shipped_profiles
from rag_middle.registry import check_names, suggest

_PROFILE = "profile"


def resolve_method(
    method: str | Method | Sequence[str | Method], options: Mapping[str, Any] | None = None
) -> Method:
    """Turn a name, a profile, a preset, a composition or an object into a method object.

    Args:
        method: ``"pine"``; ``"profile:PATH"`` (the file or folder that ``rag-middle calibrate`` or
            ``diagnose`` wrote); ``"positional_hidden_states:llama-2-7b-chat"`` (a preset);
            ``"ms_poe+siw"`` or a list (a composition); or a method object.
        options: constructor arguments, where `method` is a single name.

    Raises:
        UnknownNameError: no such method or preset, with the nearest names.
        MethodConfigError: options that the method does not have, or that it refuses; or arguments
            of other types.
        IncompatibleMethodsError: a composition that is refused.
        FileFormatError: a profile that cannot be read.
    """
    check_keywords("method_options", options, MethodConfigError)
    if isinstance(method, Method):
        if options:
            raise MethodConfigError(
                f"Options {sorted(options)} were given beside a method object: set them on it."
            )
        return method
    written: object = method
    if isinstance(written, bytes) or not isinstance(written, Sequence) or not written:
        raise MethodConfigError(
            "method must be a name ('pine', 'METHOD:PRESET', 'profile:PATH'), a method object "
            f"such as Pine(), or a list of these, got {method!r}. `rag-middle methods` lists the "
            "names."
        )
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
    names = [f.name for f in fields(kind)]  # type: ignore[arg-type]
    check_names(name, options or {}, names, MethodConfigError)
    return kind(**dict(options or {}))


def _is_profile(method: str) -> bool:
    """Whether all of it is one profile, whose path may have a ``+``."""
    name, _, path = method.partition(":")
    return name.strip() == _PROFILE and os.path.exists(os.path.expanduser(path.strip()))


def method_from_file(path: str | Path) -> Method:
    """The method of a profile on disk.

    Raises:
        FileFormatError: it cannot be read.
        UnknownNameError: it is about a method that is not installed.
        MethodConfigError: settings that the method refuses.
    """
    return method_from_profile(read_profile(path), f"profile:{path}")


def preset(method: str, name: str) -> Method:
    """Settings that a method's paper states for a model, or that were fitted to one here.

    Raises:
        MethodConfigError: the method has no presets.
        UnknownNameError: it has others.
        RegistrationError: two of them have the same name.
    """
    presets = shipped_profiles(method)
    if not presets:
        raise MethodConfigError(f"{method} has no presets; write '{method}' and pass options.")
    if name not in presets:
        raise UnknownNameError(
            f"Unknown {method} preset {name!r}.{suggest(name, presets)} Known: "
            f"{', '.join(presets)}."
        )
    return method_from_profile(presets[name], f"{method}:{name}")


def method_from_profile(profile: Profile, source: str) -> Method:
    """The method of a profile, which it keeps as its provenance.

    Args:
        profile: settings of a method, or of several.
        source: what the profile is called in messages, ``profile:PATH`` say.

    Raises:
        UnknownNameError: it is about a method that is not installed.
        MethodConfigError: settings that the method refuses.
    """
    if ":" in profile.method:
        raise MethodConfigError(
            f"{source}: a profile names methods and no presets or files, got {profile.method!r}."
        )
    provenance, options = Provenance(source=source, profile=profile), as_option(profile.options)
    names = profile.method.split("+")
    try:
        parts = [
            resolve_method(name, options if len(names) == 1 else options.get(name))
            for name in names
        ]
    except MethodConfigError as error:
        raise MethodConfigError(f"{source}: {error}") from error
    parts = [part.with_provenance(provenance) for part in parts]
    if len(parts) == 1:
        return parts[0]
    return Compose(methods=tuple(parts)).with_provenance(provenance)


def method_name(method: Method) -> str:
    """The name that chooses it: ``pine``, ``METHOD:PRESET``, ``profile:PATH``, ``ms_poe+siw``.

    It does not tell options that were set by hand.
    """
    if isinstance(method, Compose) and method.provenance is None:
        return "+".join(method_name(part) for part in method.methods)
    return method.provenance.source if method.provenance else method.name


def method_in_words(method: Method) -> tuple[str, dict[str, Any]] | None:
    """The name of a method and its options as JSON writes them; None where they choose another.

    So do those of a composition whose parts have options of their own, and of a class that has no
    name. `as_option` reads the options.
    """
    try:
        named = method.provenance is not None or isinstance(method, Compose)
        name, options = method_name(method), {} if named else options_in_words(method)
        return (name, options) if resolve_method(name, as_option(options)) == method else None
    except (RagMiddleError, TypeError):  # no such name; an option that JSON cannot write
        return None


def options_in_words(method: Method) -> dict[str, Any]:
    """The options of one method that are not its defaults, as JSON writes them.

    Raises:
        TypeError: one that JSON cannot write.
    """
    changed = {
        field.name: getattr(method, field.name)
        for field in fields(method)  # type: ignore[arg-type]  # methods are dataclasses
        if getattr(method, field.name) != field.default
    }
    options: dict[str, Any] = json.loads(json.dumps(changed))
    return options


def as_option(value: Any) -> Any:
    """What JSON made of an option, back in the types of methods: tuples, and layers as numbers."""
    if isinstance(value, Mapping):
        return {_as_key(key): as_option(item) for key, item in value.items()}
    return tuple(map(as_option, value)) if isinstance(value, list | tuple) else value


def _as_key(key: Any) -> Any:
    is_layer = isinstance(key, str) and key.isdecimal() and len(key) < 10
    return int(key) if is_layer else key
