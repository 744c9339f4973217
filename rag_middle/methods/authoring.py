"""What the author of a method needs, with the names that `rag_middle.authoring` has."""

from __future__ import annotations

from rag_middle.attention import ASPECTS as ASPECTS
from rag_middle.attention import Aspect as Aspect
from rag_middle.attention import AttentionCall as AttentionCall
from rag_middle.attention import AttentionContext as AttentionContext
from rag_middle.attention import AttentionPlan as AttentionPlan
from rag_middle.attention import Layer as Layer
from rag_middle.attention import LayerChange as LayerChange
from rag_middle.attention import LayerHandler as LayerHandler
from rag_middle.attention import LayerTraits as LayerTraits
from rag_middle.attention import ModelTraits as ModelTraits
from rag_middle.attention import attention_scores as attention_scores
from rag_middle.attention import base_attention as base_attention
from rag_middle.attention import in_rows as in_rows
from rag_middle.attention import join_rows as join_rows
from rag_middle.attention import last_rows_attention as last_rows_attention
from rag_middle.methods.base import METHODS as METHODS
from rag_middle.methods.base import Method as Method
from rag_middle.methods.base import MethodInfo as MethodInfo
from rag_middle.methods.base import Runner as Runner
from rag_middle.methods.base import chosen_layers as chosen_layers
from rag_middle.methods.document_columns import after_documents as after_documents
from rag_middle.methods.document_columns import by_document as by_document
from rag_middle.methods.document_method import Attention as Attention
from rag_middle.methods.document_method import AttentionMethod as AttentionMethod
from rag_middle.methods.document_method import DocumentMethod as DocumentMethod
from rag_middle.methods.requirements import require_interface as require_interface
from rag_middle.methods.requirements import require_known_rotation as require_known_rotation
from rag_middle.methods.requirements import require_rope as require_rope
from rag_middle.methods.requirements import unsupported as unsupported
from rag_middle.methods.rules import INDICES as INDICES
from rag_middle.methods.rules import no_default as no_default
from rag_middle.methods.rules import number as number
from rag_middle.methods.rules import one_of as one_of
from rag_middle.methods.rules import option as option
from rag_middle.methods.rules import several as several
from rag_middle.methods.rules import text as text
from rag_middle.methods.rules import whole as whole
from rag_middle.methods.scales import PositionScale as PositionScale
from rag_middle.tokens import TokenizedPrompt as TokenizedPrompt
