"""Settings that come with this package and were fitted to a given model."""

from __future__ import annotations

from rag_middle.evaluation.next_steps import FITTED_BY_CALIBRATION
from rag_middle.generation import RagMiddleModel, model_facts
from rag_middle.profiles import measured_profiles

__all__ = ["fitted_presets"]


def fitted_presets(model: RagMiddleModel) -> tuple[str, ...]:
    """Presets that were fitted to these very weights and helped on held-out questions.

    Args:
        model: whose weights they must have been fitted to: after another training they say nothing.

    Returns:
        Names for `resolve_method`, such as ``"lpes:reader"``.
    """
    found = [
        (f"{method}:{name}", profile)
        for method in FITTED_BY_CALIBRATION
        for name, profile in measured_profiles(method).items()
        if profile.recommended
    ]
    if not found:
        return ()
    here = model_facts(model.model, model.tokenizer, all_weights=False)
    return tuple(
        preset
        for preset, profile in found
        if profile.model.weights_sample is not None
        and not profile.model.shape_differences(here)
        and not profile.model.version_differences(here)
    )
