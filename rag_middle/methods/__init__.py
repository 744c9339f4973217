"""The methods, one file per paper."""

from rag_middle.methods.attention_buckets import AttentionBuckets
from rag_middle.methods.attention_calibration import AttentionCalibration
from rag_middle.methods.attention_sorting import AttentionSorting
from rag_middle.methods.attn_rank import AttnRank
from rag_middle.methods.base import (
    Method,
    MethodInfo,
    as_indices,
    as_several,
    chosen_layers,
    require_count,
    require_finite,
)
from rag_middle.methods.compose import Compose
from rag_middle.methods.long_context_reorder import LongContextReorder
from rag_middle.methods.lpes import LPES
from rag_middle.methods.moice import MoICE
from rag_middle.methods.ms_poe import MsPoE
from rag_middle.methods.none import NoMethod
from rag_middle.methods.parallel_context import (
    APE,
    NoInterDocumentAttention,
    ParallelContextWindows,
    StructuredPrompting,
)
from rag_middle.methods.permutation import Permutation
from rag_middle.methods.pine import PINE
from rag_middle.methods.position_interpolation import PositionInterpolation
from rag_middle.methods.positional_hidden_states import PositionalHiddenStates
from rag_middle.methods.profiled import Provenance, preset
from rag_middle.methods.registered import METHODS
from rag_middle.methods.requirements import (
    require_interface,
    require_known_rotation,
    require_rope,
    unsupported,
)
from rag_middle.methods.resolve import resolve_method
from rag_middle.methods.rotor import RoToR
from rag_middle.methods.runner import Runner
from rag_middle.methods.self_extend import SelfExtend
from rag_middle.methods.siw import SIW

__all__ = [
    "APE",
    "LPES",
    "METHODS",
    "PINE",
    "SIW",
    "AttentionBuckets",
    "AttentionCalibration",
    "AttentionSorting",
    "AttnRank",
    "Compose",
    "LongContextReorder",
    "Method",
    "MethodInfo",
    "MoICE",
    "MsPoE",
    "NoInterDocumentAttention",
    "NoMethod",
    "ParallelContextWindows",
    "Permutation",
    "PositionInterpolation",
    "PositionalHiddenStates",
    "Provenance",
    "RoToR",
    "Runner",
    "SelfExtend",
    "StructuredPrompting",
    "as_indices",
    "as_several",
    "chosen_layers",
    "preset",
    "require_count",
    "require_finite",
    "require_interface",
    "require_known_rotation",
    "require_rope",
    "resolve_method",
    "unsupported",
]
