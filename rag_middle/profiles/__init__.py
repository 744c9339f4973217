"""Parameters of a method calibrated for one model, as files.

``rag-middle calibrate`` writes them, and ``method="profile:PATH"`` reads them wherever a method is
accepted. Reading one runs no code and loads no model.
"""

from rag_middle.profiles.files import (
    measured_profiles,
    published_profiles,
    read_profile,
    shipped_profiles,
    write_profile,
)
from rag_middle.profiles.profile import FORMAT_VERSION, ModelFacts, Profile

__all__ = [
    "FORMAT_VERSION",
    "ModelFacts",
    "Profile",
    "measured_profiles",
    "published_profiles",
    "read_profile",
    "shipped_profiles",
    "write_profile",
]
