"""Profiles on disk, and those that come with the package."""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path

from rag_middle.errors import ProfileFormatError, RegistrationError
from rag_middle.files import write_files
from rag_middle.plain_data import parse_json
from rag_middle.profiles.profile import Profile

__all__ = [
    "measured_profiles",
    "published_profiles",
    "read_profile",
    "shipped_profiles",
    "write_profile",
]

_PUBLISHED = Path(__file__).parent / "published"
_MEASURED = Path(__file__).parent / "measured"


def read_profile(path: str | Path) -> Profile:
    """The profile in a file.

    Raises:
        ProfileFormatError: no such file, not JSON, or not a profile of this version.
    """
    path = Path(os.path.expanduser(path))
    try:
        if os.path.exists(path) and not os.path.isfile(path):
            raise OSError("it is no file")  # some devices never end
        content = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # ValueError: neither UTF-8 nor JSON
        raise ProfileFormatError(
            f"The profile {str(path)!r} cannot be read ({error}). Give the path of a file that "
            "`rag-middle calibrate` wrote."
        ) from error
    try:
        return Profile.from_dict(content)
    except ProfileFormatError as error:
        raise ProfileFormatError(f"{path}: {error}") from None


def write_profile(profile: Profile, path: str | Path) -> None:
    """Write a profile, atomically.

    Raises:
        OutputWriteError: the folder cannot be written to; an existing profile is unchanged.
    """
    path = Path(os.path.expanduser(path))
    text = json.dumps(profile.to_dict(), indent=1, allow_nan=False) + "\n"
    write_files(path.parent, {path.name: text.encode()})


@cache
def published_profiles(method: str) -> dict[str, Profile]:
    """Settings that papers state for models, by preset name; none for most methods."""
    return _presets(_PUBLISHED, method)


@cache
def measured_profiles(method: str) -> dict[str, Profile]:
    """Settings that `rag-middle calibrate` found for the bundled reader, by preset name."""
    return _presets(_MEASURED, method)


def shipped_profiles(method: str) -> dict[str, Profile]:
    """All profiles of the package by preset name, the published ones first.

    Raises:
        RegistrationError: a published and a measured one have the same name.
    """
    published, measured = published_profiles(method), measured_profiles(method)
    duplicates = sorted(published.keys() & measured.keys())
    if duplicates:
        raise RegistrationError(
            f"{method} has two presets called {' and '.join(map(repr, duplicates))}, one published "
            "and one measured: rename the file of the measured one."
        )
    return {**published, **measured}


def _presets(parent: Path, method: str) -> dict[str, Profile]:
    folder = parent / method
    if not method.isidentifier() or not folder.is_dir():
        return {}
    return {path.stem: read_profile(path) for path in sorted(folder.glob("*.json"))}
