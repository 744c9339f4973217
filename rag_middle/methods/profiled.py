"""Methods whose parameters come from a profile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rag_middle.attention import ModelTraits
from rag_middle.errors import MethodConfigError, ProfileMismatchError, UnknownNameError
from rag_middle.methods.base import Method
from rag_middle.profiles import (
    ModelFacts,
    Profile,
    read_profile,
    shipped_profiles,
)
from rag_middle.registry import suggest

__all__ = ["Provenance", "as_option", "method_from_file", "preset"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where a method's parameters come from: kept beside the method, as `Method.provenance`.

    Attributes:
        source: by which they are chosen: ``profile:PATH``, or a preset such as ``lpes:reader``.
        profile: that sets them.
    """

    source: str
    profile: Profile = field(repr=False)

    def check_fits(self, traits: ModelTraits) -> None:
        """Refuse a model that is not built as the profile says.

        Raises:
            ProfileMismatchError: it is not.
        """
        first = next(iter(traits.layers.values()), None)
        here = ModelFacts(
            id="",
            model_type=traits.model_type,
            layers=traits.num_layers,
            hidden_size=traits.hidden_size,
            heads=first.heads if first else None,
            kv_heads=first.kv_heads if first else None,
        )
        differences = self.profile.model.shape_differences(here)
        if differences:
            raise ProfileMismatchError(
                f"{self.source} was made for {self.profile.model.id}, a model of another shape: "
                f"{'; '.join(differences)}. Calibrate for this model, or use the profile with the "
                "model that it was made for."
            )


def method_from_file(path: str | Path) -> Method:
    """The method of a profile on disk.

    Raises:
        ProfileFormatError: it cannot be read.
        UnknownNameError: it is about a method that is not installed.
        MethodConfigError: settings that the method refuses.
    """
    return _method(read_profile(path), f"profile:{path}")


def preset(method: str, name: str) -> Method:
    """Settings that a method's paper states for a model, or that were fitted to the bundled reader.

    Raises:
        MethodConfigError: the method has no presets.
        UnknownNameError: it has others.
        RegistrationError: two of them have the same name.
    """
    known = shipped_profiles(method)
    if not known:
        raise MethodConfigError(f"{method} has no presets; write '{method}' and pass options.")
    if name not in known:
        raise UnknownNameError(
            f"Unknown {method} preset {name!r}.{suggest(name, known)} Known: {', '.join(known)}."
        )
    return _method(known[name], f"{method}:{name}")


def _method(profile: Profile, source: str) -> Method:
    from rag_middle.methods.resolve import resolve_method  # which reads profiles by this module

    if ":" in profile.method or "+" in profile.method:
        raise MethodConfigError(
            f"{source}: a profile is about one method by its name, got {profile.method!r}."
        )
    try:
        method = resolve_method(profile.method, as_option(profile.options))
    except MethodConfigError as error:
        raise MethodConfigError(f"{source}: {error}") from error
    return method.with_provenance(Provenance(source=source, profile=profile))


def as_option(value: Any) -> Any:
    """What JSON made of an option, back in the types of methods: tuples, and layers as numbers."""
    if isinstance(value, Mapping):
        return {_as_key(key): as_option(each) for key, each in value.items()}
    return tuple(map(as_option, value)) if isinstance(value, list | tuple) else value


def _as_key(key: Any) -> Any:
    is_layer = isinstance(key, str) and key.isdecimal() and len(key) < 10
    return int(key) if is_layer else key
