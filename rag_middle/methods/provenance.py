"""Where the parameters of a method come from, if they come from a profile."""

from __future__ import annotations

from dataclasses import dataclass, field

from rag_middle.attention import ModelTraits
from rag_middle.errors import ProfileMismatchError
from rag_middle.profiles import ModelFacts, Profile

__all__ = ["Provenance"]


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
