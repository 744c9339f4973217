"""A package that ships other fitted profiles than this one does."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from rag_middle.profiles import Profile, files, measured_profiles, write_profile

__all__ = ["shipping"]


@contextmanager
def shipping(folder: Path, profiles: Mapping[str, Profile]) -> Iterator[None]:
    """Inside, the package ships `profiles`, by preset name, and no others that were measured."""
    for name, profile in profiles.items():
        write_profile(profile, folder / profile.method / f"{name}.json")
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(files, "_MEASURED", folder)
            measured_profiles.cache_clear()
            yield
    finally:
        measured_profiles.cache_clear()  # after a failing test too, or others see its profiles
