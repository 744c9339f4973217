"""The methods by name. The only list of them: everything else is made from it."""

from __future__ import annotations

from rag_middle.errors import RegistrationError
from rag_middle.methods.base import Method
from rag_middle.registry import Registry

__all__ = ["METHODS"]


def _check(target: object) -> None:
    if not (isinstance(target, type) and issubclass(target, Method)):
        raise RegistrationError(f"{target!r} is not a subclass of rag_middle.methods.Method.")


METHODS: Registry[type[Method]] = Registry(
    "method", entry_point_group="rag_middle.methods", check=_check
)
METHODS.register("none", "rag_middle.methods.none:NoMethod")
METHODS.register("pine", "rag_middle.methods.pine:PINE")
METHODS.register("ms_poe", "rag_middle.methods.ms_poe:MsPoE")
METHODS.register(
    "positional_hidden_states",
    "rag_middle.methods.positional_hidden_states:PositionalHiddenStates",
)
METHODS.register("lpes", "rag_middle.methods.lpes:LPES")
METHODS.register("siw", "rag_middle.methods.siw:SIW")
METHODS.register(
    "position_interpolation", "rag_middle.methods.position_interpolation:PositionInterpolation"
)
METHODS.register("attention_buckets", "rag_middle.methods.attention_buckets:AttentionBuckets")
METHODS.register("moice", "rag_middle.methods.moice:MoICE")
METHODS.register("rotor", "rag_middle.methods.rotor:RoToR")
METHODS.register(
    "long_context_reorder", "rag_middle.methods.long_context_reorder:LongContextReorder"
)
METHODS.register("attn_rank", "rag_middle.methods.attn_rank:AttnRank")
METHODS.register("attention_sorting", "rag_middle.methods.attention_sorting:AttentionSorting")
METHODS.register(
    "attention_calibration", "rag_middle.methods.attention_calibration:AttentionCalibration"
)
METHODS.register("permutation", "rag_middle.methods.permutation:Permutation")
METHODS.register("self_extend", "rag_middle.methods.self_extend:SelfExtend")
METHODS.register(
    "no_inter_document_attention",
    "rag_middle.methods.parallel_context:NoInterDocumentAttention",
)
METHODS.register(
    "parallel_context_windows",
    "rag_middle.methods.parallel_context:ParallelContextWindows",
)
METHODS.register("structured_prompting", "rag_middle.methods.parallel_context:StructuredPrompting")
METHODS.register("ape", "rag_middle.methods.parallel_context:APE")
METHODS.register("compose", "rag_middle.methods.compose:Compose")
