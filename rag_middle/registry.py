"""Things found by name: those of this package and those other packages announce."""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, NamedTuple, TypeVar, cast

from rag_middle.errors import RegistrationError, UnknownNameError

T = TypeVar("T")

_NAME = re.compile(r"[a-z][a-z0-9_]*")


class _Announced(NamedTuple):
    """A target that another package brings."""

    target: str
    package: str

    def __str__(self) -> str:
        return f"{self.target} of {self.package}"


class Registry(Generic[T]):
    """Names and what they stand for, loaded on first use.

    A target is an object, or a string ``"package.module:attribute"`` that is imported when its
    name is first asked for; listing names imports nothing. Entry points of installed packages
    come after the registered names, sorted. A broken one costs its own name and no other.

    Args:
        kind: what is registered, in the singular, for messages (``"method"``).
        entry_point_group: group of entry points to read, if any.
        check: called with each loaded target; raises where the target is not fit to be used.

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
        check: Callable[[object], None] = lambda target: None,
    ) -> None:
        self.kind = kind
        self._group = entry_point_group
        self._check = check
        self._registered: dict[str, T | str] = {}
        self._announced: dict[str, _Announced] | None = None  # read on first need
        self._loaded: dict[str, T] = {}

    def register(self, name: str, target: T | str) -> None:
        """Make ``target`` known as ``name``.

        Raises:
            RegistrationError: the name is taken or not in lower_snake_case.
        """
        if not _NAME.fullmatch(name):
            raise RegistrationError(
                f"{name!r} cannot name a {self.kind}: use lower-case letters, digits and '_'."
            )
        if name in self._registered:
            raise RegistrationError(
                f"There is a {self.kind} {name!r} already ({self._registered[name]}): choose "
                "another name."
            )
        self._registered[name] = target
        self._loaded.pop(name, None)  # an entry point of the same name gives way

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
        """Registered names in order of registration, then those of other packages, sorted."""
        return tuple(dict.fromkeys((*self._registered, *self._entry_points())))

    def items(self) -> Iterator[tuple[str, T]]:
        """Every name with its target; another package's broken target is left out with a warning.

        Raises:
            RegistrationError: a registered target cannot be loaded.
        """
        for name in self.names():
            try:
                target = self.get(name)
            except RegistrationError as error:
                if name in self._registered:
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
        source = self._registered[name] if name in self._registered else self._entry_point(name)
        target = source.target if isinstance(source, _Announced) else source
        try:
            if isinstance(target, str):
                target = EntryPoint(name, target, group="").load()
            self._check(target)
        except Exception as error:  # importing other people's code can raise anything
            remedy = "" if name in self._registered else " Update or remove that package."
            raise RegistrationError(
                f"The {self.kind} {name!r} ({source}) cannot be loaded: "
                f"{type(error).__name__}: {str(error).rstrip('.')}.{remedy}"
            ) from error
        return cast(T, target)

    def _entry_point(self, name: str) -> _Announced:
        if name not in self._entry_points():
            known = self.names()
            raise UnknownNameError(
                f"Unknown {self.kind} {name!r}.{suggest(name, known)} Known: {', '.join(known)}."
            )
        return self._entry_points()[name]

    def _entry_points(self) -> dict[str, _Announced]:
        """Entry points under names of their own, sorted. Reads metadata, imports nothing."""
        if self._announced is None:
            self._announced = {}
            points = entry_points(group=self._group) if self._group else ()
            # By package, so that of two with one name the same one has it each time.
            for point in sorted(points, key=lambda p: (p.name, p.dist.name if p.dist else "")):
                package = f"{point.dist.name} {point.dist.version}" if point.dist else "a package"
                announced = _Announced(point.value, package)
                if point.name in (*self._registered, *self._announced):
                    warnings.warn(
                        f"Left out the {self.kind} {point.name!r} ({announced}): the name is "
                        "taken.",
                        RuntimeWarning,
                        stacklevel=3,
                    )
                else:
                    self._announced[point.name] = announced
        return self._announced


def suggest(name: object, known: Iterable[str]) -> str:
    """`` Did you mean 'ms_poe'?``, or nothing where no known name comes close."""
    spelling = str(name)[:200].strip().lower().replace("-", "_")  # difflib is slow on long texts
    by_spelling = {candidate.lower().replace("-", "_"): candidate for candidate in known}
    close = difflib.get_close_matches(spelling, by_spelling, n=1)
    return f" Did you mean {by_spelling[close[0]]!r}?" if close else ""
