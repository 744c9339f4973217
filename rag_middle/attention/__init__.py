"""The seam with transformers: run any decoder's attention under a plan, and leave no trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rag_middle.attention.change import (
    ASPECTS,
    Aspect,
    AttentionContext,
    Layer,
    LayerChange,
    LayerHandler,
    Rotation,
)
from rag_middle.attention.plan import AttentionPlan
from rag_middle.attention.traits import (
    LayerTraits,
    ModelTraits,
    context_window,
    input_device,
    puts_virtual_tokens,
    vocabulary_size,
    waits_for_invocation,
)
from rag_middle.lazy import names_on_first_use

if TYPE_CHECKING:
    from rag_middle.attention.capturing import capture
    from rag_middle.attention.observe import last_token_attention
    from rag_middle.attention.patch import (
        Planner,
        applied,
        assume_traits,
        kernels_in_use,
        model_traits,
        modules_by_layer,
        use_kernels,
    )
    from rag_middle.attention.request import Request, RowGroup, in_rows, join_rows
    from rag_middle.attention.rotary import LayerStack, RotaryCall, on_device, pair_tables
    from rag_middle.attention.seam import (
        AttentionCall,
        backend_name,
        base_attention,
        config_views,
        in_eval_mode,
    )
    from rag_middle.attention.turns import model_lock, turn
    from rag_middle.attention.weights import ModelAttention, attention_scores, last_rows_attention

__all__ = [
    "ASPECTS",
    "Aspect",
    "AttentionCall",
    "AttentionContext",
    "AttentionPlan",
    "Layer",
    "LayerChange",
    "LayerHandler",
    "LayerStack",
    "LayerTraits",
    "ModelAttention",
    "ModelTraits",
    "Planner",
    "Request",
    "RotaryCall",
    "Rotation",
    "RowGroup",
    "applied",
    "assume_traits",
    "attention_scores",
    "backend_name",
    "base_attention",
    "capture",
    "config_views",
    "context_window",
    "in_eval_mode",
    "in_rows",
    "input_device",
    "join_rows",
    "kernels_in_use",
    "last_rows_attention",
    "last_token_attention",
    "model_lock",
    "model_traits",
    "modules_by_layer",
    "on_device",
    "pair_tables",
    "puts_virtual_tokens",
    "turn",
    "use_kernels",
    "vocabulary_size",
    "waits_for_invocation",
]

# Methods are listed and checked without PyTorch, which these need.
__getattr__, __dir__ = names_on_first_use(__name__)
