"""The seam with transformers: run any decoder's attention under a plan, and leave no trace."""

from __future__ import annotations

# Sorted, every name would have an import of its own.
# isort: off
from typing import TYPE_CHECKING

from rag_middle.attention.change import (
    ASPECTS as ASPECTS,
    Aspect as Aspect,
    AttentionContext as AttentionContext,
    Layer as Layer,
    LayerChange as LayerChange,
    LayerHandler as LayerHandler,
    Rotation as Rotation,
)
from rag_middle.attention.plan import AttentionPlan as AttentionPlan
from rag_middle.attention.traits import (
    LayerTraits as LayerTraits,
    ModelTraits as ModelTraits,
    context_window as context_window,
    input_device as input_device,
    puts_virtual_tokens as puts_virtual_tokens,
    vocabulary_size as vocabulary_size,
    waits_for_invocation as waits_for_invocation,
)
from rag_middle.lazy import names_on_first_use

if TYPE_CHECKING:
    from rag_middle.attention.capturing import capture as capture
    from rag_middle.attention.observe import last_token_attention as last_token_attention
    from rag_middle.attention.patch import (
        Planner as Planner,
        applied as applied,
        assume_traits as assume_traits,
        is_compiled as is_compiled,
        kernels_in_use as kernels_in_use,
        model_traits as model_traits,
        modules_by_layer as modules_by_layer,
        use_kernels as use_kernels,
    )
    from rag_middle.attention.request import (
        Request as Request,
        RowGroup as RowGroup,
        in_rows as in_rows,
        join_rows as join_rows,
    )
    from rag_middle.attention.rotary import (
        LayerStack as LayerStack,
        RotaryCall as RotaryCall,
        on_device as on_device,
        pair_tables as pair_tables,
    )
    from rag_middle.attention.seam import (
        AttentionCall as AttentionCall,
        backend_name as backend_name,
        base_attention as base_attention,
        config_views as config_views,
        in_eval_mode as in_eval_mode,
    )
    from rag_middle.attention.locks import locked as locked, model_lock as model_lock
    from rag_middle.attention.weights import (
        ModelAttention as ModelAttention,
        attention_scores as attention_scores,
        last_rows_attention as last_rows_attention,
    )

# Methods are listed and checked without PyTorch, which these need.
__getattr__, __dir__ = names_on_first_use(__name__)
