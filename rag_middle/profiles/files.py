"""Profiles on disk, and those that come with the package."""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path

from rag_middle.errors import FileFormatError
from rag_middle.files import expanded, reason, write_files
from rag_middle.plain_data import parse_json
from rag_middle.profiles.profile import Profile

_PUBLISHED = Path(__file__).parent / "published"
_MEASURED = Path(__file__).parent / "measured"
#: What `diagnose` calls its profile in its folder.
PROFILE_FILE = "profile.json"


def read_profile(path: str | Path) -> Profile:
    """The profile in a file, or in the folder that ``rag-middle diagnose`` wrote.

    Raises:
        FileFormatError: no such file, not JSON, or not a profile of this version.
    """
    path = expanded(path)
    if os.path.isfile(path / PROFILE_FILE):
        path = path / PROFILE_FILE
    if os.path.isdir(path):
        there = ", ".join(sorted(entry.name for entry in path.glob("*.json"))[:8])
        raise FileFormatError(
            f"{str(path)!r} is a folder without {PROFILE_FILE}, which `rag-middle diagnose` "
            "writes; profiles of `rag-middle calibrate` are files (METHOD.json). JSON files in "
            f"this folder: {there or 'none'}."
        )
    try:
        content = parse_json(path.read_bytes())
    except (OSError, ValueError) as error:  # ValueError: neither UTF-8 nor JSON
        raise FileFormatError(
            f"The profile {str(path)!r} cannot be read ({reason(error)}). Give the folder that "
            "`rag-middle diagnose --out` wrote (rag-middle-diagnosis unless it was named), or a "
            "METHOD.json of `rag-middle calibrate`, not the state of its search."
        ) from error
    try:
        return Profile.from_dict(content)
    except FileFormatError as error:
        raise FileFormatError(f"{path}: {error}") from None


def write_profile(profile: Profile, path: str | Path) -> None:
    """Write a profile, atomically.

    Raises:
        OutputWriteError: the folder cannot be written to; an existing profile is unchanged.
    """
    path = expanded(path)
    text = json.dumps(profile.to_dict(), indent=1, allow_nan=False) + "\n"
    write_files(path.parent, {path.name: text.encode()})


@cache
def published_profiles(method: str) -> dict[str, Profile]:
    """Settings that papers state for models, by preset name; none for most methods."""
    return _presets(_PUBLISHED, method)


@cache
def measured_profiles(method: str) -> dict[str, Profile]:
    """Settings that `rag-middle calibrate` found for a model, by preset name."""
    return _presets(_MEASURED, method)


def shipped_profiles(method: str) -> dict[str, Profile]:
    """All profiles of the package by preset name, the published ones first."""
    return {**published_profiles(method), **measured_profiles(method)}


def _presets(parent: Path, method: str) -> dict[str, Profile]:
    folder = parent / method
    if not method.isidentifier() or not folder.is_dir():
        return {}
    return {path.stem: read_profile(path) for path in sorted(folder.glob("*.json"))}
