"""Methods whose parameters come from a profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from rag_middle.attention.plan import AttentionPlan
from rag_middle.attention.traits import ModelTraits
from rag_middle.errors import MethodConfigError, ProfileMismatchError, UnknownNameError
from rag_middle.layout import PromptLayout
from rag_middle.methods.base import Method, MethodInfo
from rag_middle.profiles import (
    ModelFacts,
    Profile,
    read_profile,
    shipped_profiles,
)
from rag_middle.registry import suggest
from rag_middle.tokens import TokenizedPrompt

if TYPE_CHECKING:
    from torch import Tensor

    from rag_middle.methods.runner import Runner

__all__ = ["FromProfile", "as_option", "method_from_file", "preset"]


@dataclass(frozen=True, kw_only=True)
class FromProfile(Method):
    """A method with the settings of a profile, refused on models of another shape.

    In results it goes by its source: with other settings the method is another one.

    Attributes:
        source: by which it is chosen: ``profile:PATH``, or a preset such as ``lpes:reader``.
        method: what the profile sets.
        profile: the profile.
    """

    registered_name: ClassVar[str] = "profile"
    info: ClassVar[MethodInfo] = MethodInfo(
        title="Profile",
        paper="",
        idea="A method with settings fitted to one model.",
        cost="that of the method",
        requires="the model that the settings were fitted to",
    )

    source: str
    method: Method
    profile: Profile = field(repr=False)

    @property
    def name(self) -> str:
        """That of the method."""
        return self.method.name

    @property
    def parts(self) -> tuple[Method, ...]:
        """Those of the method."""
        return self.method.parts

    def plan(self, layouts: tuple[PromptLayout, ...], traits: ModelTraits) -> AttentionPlan:
        """The method's, where the model is built as the profile says.

        Raises:
            ProfileMismatchError: it is not.
        """
        differences = self.profile.model.shape_differences(_shape(traits))
        if differences:
            raise ProfileMismatchError(
                f"{self.source} was made for {self.profile.model.id}, a model of another shape: "
                f"{'; '.join(differences)}. Calibrate for this model, or use the profile with the "
                "model that it was made for."
            )
        return self.method.plan(layouts, traits)

    def arrange(self, prompt: TokenizedPrompt, runner: Runner) -> Sequence[int]:
        """The method's."""
        return self.method.arrange(prompt, runner)

    def branches(self, prompt: TokenizedPrompt, runner: Runner) -> Sequence[Sequence[int]]:
        """The method's."""
        return self.method.branches(prompt, runner)

    def combine(self, logits: Tensor) -> Tensor:
        """The method's."""
        return self.method.combine(logits)

    @property
    def combines(self) -> bool:
        """As the method."""
        return self.method.combines

    @property
    def arranges(self) -> bool:
        """As the method."""
        return self.method.arranges

    @property
    def is_neutral(self) -> bool:
        """As the method."""
        return self.method.is_neutral

    @property
    def needs_documents(self) -> bool:
        """As the method."""
        return self.method.needs_documents


def method_from_file(path: str | Path) -> FromProfile:
    """The method of a profile on disk.

    Raises:
        ProfileFormatError: it cannot be read.
        UnknownNameError: it is about a method that is not installed.
        MethodConfigError: settings that the method refuses.
    """
    return _method(read_profile(path), f"profile:{path}")


def preset(method: str, name: str) -> FromProfile:
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


def _method(profile: Profile, source: str) -> FromProfile:
    from rag_middle.methods.resolve import resolve_method  # which reads profiles by this module

    if ":" in profile.method or "+" in profile.method:
        raise MethodConfigError(
            f"{source}: a profile is about one method by its name, got {profile.method!r}."
        )
    try:
        method = resolve_method(profile.method, as_option(profile.options))
    except MethodConfigError as error:
        raise MethodConfigError(f"{source}: {error}") from error
    return FromProfile(source=source, method=method, profile=profile)


def as_option(value: Any) -> Any:
    """What JSON made of an option, back in the types of methods: tuples, and layers as numbers."""
    if isinstance(value, Mapping):
        return {
            int(key) if isinstance(key, str) and key.isdecimal() else key: as_option(each)
            for key, each in value.items()
        }
    return tuple(map(as_option, value)) if isinstance(value, list | tuple) else value


def _shape(traits: ModelTraits) -> ModelFacts:
    first = next(iter(traits.layers.values()), None)
    return ModelFacts(
        id="",
        model_type=traits.model_type,
        layers=traits.num_layers,
        hidden_size=traits.hidden_size,
        heads=first.heads if first else None,
        kv_heads=first.kv_heads if first else None,
    )
