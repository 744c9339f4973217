"""Things found by name, other packages' too; methods here are listed in methods/registered.py."""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, TypeVar, cast

from rag_middle.errors import RagMiddleError, RegistrationError, UnknownNameError

T = TypeVar("T")

_NAME = re.compile(r"[a-z][a-z0-9_]*")


class Registry(Generic[T]):
    """Names and what they stand for, loaded on first use.

    A target is an object, or a string ``"package.module:attribute"`` that is imported when its
    name is first asked for; listing names imports nothing. Entry points of installed packages
    come after the names registered so far, sorted. A broken one costs its own name and no other.

    Args:
        kind: what is registered, in the singular, for messages (``"method"``).
        entry_point_group: group of entry points to read, if any.
        base: of which each loaded target has to be a subclass, if any.

    Example:
        >>> numbers: Registry[type] = Registry("number")
        >>> numbers.register("fraction", "fractions:Fraction")
        >>> numbers.get("fraction").__name__
        'Fraction'
    """

    def __init__(
        self,
        kind: str,
        *,
        entry_point_group: str | None = None,
        base: type | None = None,
    ) -> None:
        self.kind = kind
        self._group = entry_point_group  # until it is read
        self._base = base
        self._targets: dict[str, T | str] = {}
        self._packages: dict[str, str] = {}  # of names that others bring
        self._loaded: dict[str, T] = {}

    def register(self, name: str, target: T | str) -> None:
        """Make ``target`` known as ``name``; an entry point of the same name gives way.

        Raises:
            RegistrationError: the name is taken or not in lower_snake_case.
        """
        if not _NAME.fullmatch(name):
            raise RegistrationError(
                f"{name!r} cannot name a {self.kind}: use lower-case letters, digits and '_'."
            )
        if name in self._targets and not self._packages.pop(name, None):
            raise RegistrationError(
                f"There is a {self.kind} {name!r} already ({self._targets[name]}): choose "
                "another name."
            )
        self._targets[name] = target
        self._loaded.pop(name, None)

    def get(self, name: str) -> T:
        """What ``name`` stands for.

        Raises:
            UnknownNameError: no such name; the message suggests the closest one.
            RegistrationError: the name is known and its target cannot be loaded.
        """
        if name not in self._loaded:
            self._loaded[name] = self._load(name)
        return self._loaded[name]

    def names(self) -> tuple[str, ...]:
        """Every name; reads other packages' metadata, imports nothing."""
        if self._group is not None:
            points, self._group = entry_points(group=self._group), None
            # By package, so that of two with one name the same one has it each time.
            for point in sorted(points, key=lambda p: (p.name, p.dist.name if p.dist else "")):
                package = f"{point.dist.name} {point.dist.version}" if point.dist else "a package"
                if point.name in self._targets:
                    warnings.warn(
                        f"Left out the {self.kind} {point.name!r} ({point.value} of {package}): "
                        "the name is taken.",
                        RuntimeWarning,
                        stacklevel=2,
                    )
                else:
                    self._targets[point.name] = point.value
                    self._packages[point.name] = package
        return tuple(self._targets)

    def items(self) -> Iterator[tuple[str, T]]:
        """Every name with its target; another package's broken target is left out with a warning.

        Raises:
            RegistrationError: a registered target cannot be loaded.
        """
        for name in self.names():
            try:
                target = self.get(name)
            except RegistrationError as error:
                if name not in self._packages:
                    raise
                warnings.warn(f"Left out: {error}", RuntimeWarning, stacklevel=2)
            else:
                yield name, target

    def __contains__(self, name: object) -> bool:
        return name in self.names()

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self.names())

    def _load(self, name: str) -> T:
        # Registered names first: they must be found without reading other packages' metadata.
        if name not in self._targets and name not in self.names():
            known = self.names()
            raise UnknownNameError(
                f"Unknown {self.kind} {name!r}.{suggest(name, known)} Known: {', '.join(known)}."
            )
        target, package = self._targets[name], self._packages.get(name)
        try:
            if isinstance(target, str):
                target = EntryPoint(name, target, group="").load()
            base = self._base
            if base and not (isinstance(target, type) and issubclass(target, base)):
                raise TypeError(f"{target!r} is no subclass of {base.__module__}.{base.__name__}")
        except Exception as error:  # importing other people's code can raise anything
            source = f"{self._targets[name]} of {package}" if package else self._targets[name]
            remedy = " Update or remove that package." if package else ""
            raise RegistrationError(
                f"The {self.kind} {name!r} ({source}) cannot be loaded: "
                f"{type(error).__name__}: {str(error).rstrip('.')}.{remedy}"
            ) from error
        return cast(T, target)


def check_names(
    owner: str, given: Iterable[str], known: Sequence[str], error: type[RagMiddleError]
) -> None:
    """Raise `error` where `given` has an option that `owner` does not know."""
    for name in given:
        if name not in known:
            raise error(
                f"{owner} has no option {name!r}.{suggest(name, known)} Options: "
                f"{', '.join(known) or 'none'}."
            )


def suggest(name: object, known: Iterable[str]) -> str:
    """`` Did you mean 'ms_poe'?``, or nothing where no known name comes close."""
    spelling = str(name)[:200].strip().lower().replace("-", "_")  # difflib is slow on long texts
    by_spelling = {candidate.lower().replace("-", "_"): candidate for candidate in known}
    close = difflib.get_close_matches(spelling, by_spelling, n=1, cutoff=0.66)
    return f" Did you mean {by_spelling[close[0]]!r}?" if close else ""
