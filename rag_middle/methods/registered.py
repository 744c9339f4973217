"""The methods of this package: a line here registers one.

Names and help of the command line, exports, tables in the docs and the contract tests follow from
this list. Its tests, its page and its row in the benchmark: docs/adding_a_method.md.
"""

from __future__ import annotations

from rag_middle.methods.base import METHODS, Method

# The methods, in the order in which they are listed:
# isort: off
from rag_middle.methods.compose import NoMethod as NoMethod
from rag_middle.methods.pine import PINE as PINE
from rag_middle.methods.ms_poe import MsPoE as MsPoE
from rag_middle.methods.positional_hidden_states import (
    PositionalHiddenStates as PositionalHiddenStates,
)
from rag_middle.methods.scales import LPES as LPES
from rag_middle.methods.siw import SIW as SIW
from rag_middle.methods.zero_tuning import ZeroTuning as ZeroTuning
from rag_middle.methods.dsas import DSAS as DSAS
from rag_middle.methods.scales import PositionInterpolation as PositionInterpolation
from rag_middle.methods.scales import AttentionBuckets as AttentionBuckets
from rag_middle.methods.moice import MoICE as MoICE
from rag_middle.methods.rotor import RoToR as RoToR
from rag_middle.methods.orders import LongContextReorder as LongContextReorder
from rag_middle.methods.orders import AttnRank as AttnRank
from rag_middle.methods.orders import MeasuredOrder as MeasuredOrder
from rag_middle.methods.orders import AttentionSorting as AttentionSorting
from rag_middle.methods.orders import AttentionCalibration as AttentionCalibration
from rag_middle.methods.orders import Permutation as Permutation
from rag_middle.methods.prompt_repetition import PromptRepetition as PromptRepetition
from rag_middle.methods.self_extend import SelfExtend as SelfExtend
from rag_middle.methods.dysco import DySCO as DySCO
from rag_middle.methods.document_blocks import (
    NoInterDocumentAttention as NoInterDocumentAttention,
    ParallelContextWindows as ParallelContextWindows,
    SetBasedPrompting as SetBasedPrompting,
    StructuredPrompting as StructuredPrompting,
    APE as APE,
    CacheBlend as CacheBlend,
)
from rag_middle.methods.compose import Compose as Compose
# isort: on

for _method in [*vars().values()]:
    if isinstance(_method, type) and issubclass(_method, Method) and _method is not Method:
        METHODS.register(_method.name, _method)
