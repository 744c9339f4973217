"""The seam with transformers: run any decoder's attention under a plan, and leave no trace."""

from rag_middle.attention.document_states import can_reuse_documents
from rag_middle.attention.observe import last_token_attention
from rag_middle.attention.patch import applied, model_lock, model_traits
from rag_middle.attention.plan import (
    AttentionPlan,
    ChannelScaling,
    DocumentBlocks,
    DocumentCircle,
    DocumentOrder,
    GroupedPositions,
    HeadPositionScale,
    InitialTokenScaling,
    LayerPlan,
    OnlineAreas,
    PositionScale,
    RotaryBases,
    RotaryExperts,
)
from rag_middle.attention.prompt_states import PromptStates, can_share_prompts, reading
from rag_middle.attention.request import Request
from rag_middle.attention.row_states import can_read_row_by_row, read_row_by_row
from rag_middle.attention.traits import LayerTraits, ModelTraits

__all__ = [
    "AttentionPlan",
    "ChannelScaling",
    "DocumentBlocks",
    "DocumentCircle",
    "DocumentOrder",
    "GroupedPositions",
    "HeadPositionScale",
    "InitialTokenScaling",
    "LayerPlan",
    "LayerTraits",
    "ModelTraits",
    "OnlineAreas",
    "PositionScale",
    "PromptStates",
    "Request",
    "RotaryBases",
    "RotaryExperts",
    "applied",
    "can_read_row_by_row",
    "can_reuse_documents",
    "can_share_prompts",
    "last_token_attention",
    "model_lock",
    "model_traits",
    "read_row_by_row",
    "reading",
]
