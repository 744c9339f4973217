"""Things found by name: those of this package and those other packages announce."""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, TypeVar, cast

from rag_middle.errors import RegistrationError, UnknownNameError

T = TypeVar("T")

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_LONGEST_NAME = 200  # of what may be misspelt, characters
_LAZY_TARGET = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


@dataclass(frozen=True, slots=True)
class _Announcement:
    """A target to import. Not an `EntryPoint`: where the package importlib_metadata is imported,
    entry points are of its class and not of the standard library's.
    """

    value: str
    package: str = ""

    def load(self) -> object:
        return EntryPoint(name="", value=self.value, group="").load()

    def __str__(self) -> str:
        return f"{self.value} of {self.package}" if self.package else self.value


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
        check: Callable[[object], None] | None = None,
    ) -> None:
        self.kind = kind
        self._group = entry_point_group
        self._check = check
        self._registered: dict[str, T | _Announcement] = {}
        self._announced: dict[str, _Announcement] | None = None  # read on first need
        self._loaded: dict[str, T] = {}

    def register(self, name: str, target: T | str) -> None:
        """Make ``target`` known as ``name``.

        Raises:
            RegistrationError: the name is taken or not in lower_snake_case, or a string target is
                not of the form ``"package.module:attribute"``.
        """
        if not _NAME.fullmatch(name):
            raise RegistrationError(
                f"{name!r} cannot name a {self.kind}: use lower-case letters, digits and '_'."
            )
        if name in self._registered:
            raise RegistrationError(
                f"There is a {self.kind} {name!r} already ({_source(self._registered[name])}): "
                "choose another name."
            )
        if not isinstance(target, str):
            self._registered[name] = target
        elif _LAZY_TARGET.fullmatch(target):
            self._registered[name] = _Announcement(target)
        else:
            raise RegistrationError(
                f"The target of {self.kind} {name!r} should read 'package.module:attribute', "
                f"got {target!r}."
            )
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
        source: T | _Announcement
        if name in self._registered:
            source = self._registered[name]
        elif name in self._entry_points():
            source = self._entry_points()[name]
        else:
            raise UnknownNameError(self._unknown(name))
        try:
            target = source.load() if isinstance(source, _Announcement) else source
            if self._check is not None:
                self._check(target)
        except Exception as error:  # importing other people's code can raise anything
            remedy = (
                "" if name in self._registered else " Update or remove the package that brings it."
            )
            raise RegistrationError(
                f"The {self.kind} {name!r} ({_source(source)}) cannot be loaded: "
                f"{type(error).__name__}: {str(error).rstrip('.')}.{remedy}"
            ) from error
        return cast(T, target)

    def _entry_points(self) -> dict[str, _Announcement]:
        """Entry points under names of their own, sorted. Reads metadata, imports nothing."""
        if self._group is None:
            return {}
        if self._announced is None:
            announced: dict[str, _Announcement] = {}
            for point in sorted(entry_points(group=self._group), key=_sort_key):
                if point.name in self._registered:
                    self._refuse(point, "a name of this package")
                elif point.name in announced:
                    self._refuse(point, f"the name is taken ({_source(announced[point.name])})")
                elif not _NAME.fullmatch(point.name):
                    self._refuse(point, "a name has lower-case letters, digits and '_'")
                else:
                    announced[point.name] = _announcement(point)
            self._announced = announced
        return self._announced

    def _refuse(self, point: EntryPoint, reason: str) -> None:
        warnings.warn(
            f"Left out the {self.kind} {point.name!r} ({_announcement(point)}): {reason}.",
            RuntimeWarning,
            stacklevel=4,
        )

    def _unknown(self, name: str) -> str:
        known = self.names()
        return f"Unknown {self.kind} {name!r}.{suggest(name, known)} Known: {', '.join(known)}."


def suggest(name: object, known: Iterable[str]) -> str:
    """`` Did you mean 'ms_poe'?``, or nothing where no known name comes close."""
    spelling = str(name).strip().lower().replace("-", "_")
    by_spelling = {each.lower().replace("-", "_"): each for each in known}
    # A text of megabytes, from a client of a server, would take seconds.
    close = difflib.get_close_matches(spelling[:_LONGEST_NAME], by_spelling, n=1)
    return f" Did you mean {by_spelling[close[0]]!r}?" if close else ""


def _announcement(point: EntryPoint) -> _Announcement:
    package = f"{point.dist.name} {point.dist.version}" if point.dist else ""
    return _Announcement(point.value, package)


def _source(target: object) -> str:
    """Where a target comes from, in words."""
    return str(target) if isinstance(target, _Announcement) else repr(target)


def _sort_key(point: EntryPoint) -> tuple[str, str]:
    return point.name, point.dist.name if point.dist else ""
