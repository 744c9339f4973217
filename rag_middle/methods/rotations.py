"""Methods as rotary tables by layer: what can be installed for good, or served by another engine.

Most methods look at each prompt. Those that only rotate every token of every prompt at other
positions need nothing but tables, which any runtime has.
"""

from __future__ import annotations

from collections.abc import Mapping

from rag_middle.attention import LayerChange, ModelTraits, Rotation
from rag_middle.errors import MethodConfigError
from rag_middle.methods.base import Method
from rag_middle.tokens import TokenizedPrompt

__all__ = ["layer_rotations"]

_PROMPT = TokenizedPrompt.assembled(
    prefix=[1], documents=[], suffix=[2], document_ids=[], scores=[]
)
_ADVICE = (
    "Methods that are nothing but rotary tables: lpes, position_interpolation, and "
    "attention_buckets with a single base. Run the others with RagMiddleModel."
)


def layer_rotations(method: Method, traits: ModelTraits) -> Mapping[int, Rotation]:
    """How each layer that `method` changes rotates its positions, whatever the prompt.

    Layers whose rotation is the model's own are among them, where the method names them.

    Args:
        method: with its parameters.
        traits: the model.

    Raises:
        MethodConfigError: the method does more than that, or its parameters do not fit the model.
        ProfileMismatchError: its parameters were calibrated for a model of another shape.
        UnsupportedArchitectureError: this model cannot take it.
    """
    if method.rewrites:
        raise _refused(method, "writes another prompt")
    if method.arranges:
        raise _refused(method, "puts the documents of each prompt in order")
    if method.combines:
        raise _refused(method, "makes each token from several forward passes")
    if method.needs_documents:
        raise _refused(method, "has to know where the documents of each prompt are")
    method.check_fits(traits)
    plan = method.plan((_PROMPT,), traits)
    plan.check(traits.num_layers, (_PROMPT.layout,))
    if not plan.layers and not method.is_neutral:
        raise _refused(method, "changes no layer by itself")
    return {layer: _rotation(method, changes) for layer, changes in plan.layers.items()}


def _rotation(method: Method, changes: tuple[LayerChange, ...]) -> Rotation:
    rotations = [change.rotation for change in changes]
    if len(rotations) != 1 or rotations[0] is None:  # two that rotate clash when they are planned
        claims = sorted({claim for change in changes for claim in change.claims})
        raise _refused(method, f"decides the {' and '.join(claims)} of each request")
    return rotations[0]


def _refused(method: Method, what: str) -> MethodConfigError:
    return MethodConfigError(
        f"{method.name} {what}, and rotary tables say nothing of that. {_ADVICE}"
    )
