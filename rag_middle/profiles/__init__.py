"""What was found for one model, as files: the parameters of a method, an order of documents.

``rag-middle calibrate`` and ``diagnose`` write them, and ``method="profile:PATH"`` reads them
wherever a method is accepted. Reading one runs no code and loads no model.
"""

from rag_middle.profiles.files import (
    PROFILE_FILE,
    measured_profiles,
    published_profiles,
    read_profile,
    shipped_profiles,
    write_profile,
)
from rag_middle.profiles.profile import FORMAT_VERSION, ModelFacts, Profile

__all__ = [
    "FORMAT_VERSION",
    "PROFILE_FILE",
    "ModelFacts",
    "Profile",
    "measured_profiles",
    "published_profiles",
    "read_profile",
    "shipped_profiles",
    "write_profile",
]
