"""Methods as rotary tables by layer: what can be installed for good, or served by another engine.

Most methods look at each prompt. Those that only rotate every token of every prompt at other
positions need nothing but tables, which any runtime has. Position interpolation needs even less:
it is a setting of a config, `rope_parameters`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rag_middle.attention import LayerChange, ModelTraits, Rotation
from rag_middle.errors import MethodConfigError, UnsupportedArchitectureError
from rag_middle.methods.base import Method
from rag_middle.methods.lpes import LPES
from rag_middle.methods.position_interpolation import PositionInterpolation
from rag_middle.tokens import TokenizedPrompt

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
        MethodConfigError: its parameters were calibrated for a model of another shape.
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


def exported_rope_parameters(method: Method, config: Any) -> dict[str, Any]:
    """A model's ``config.rope_parameters`` under which it rotates as `method` says, by itself.

    For transformers without this package, vLLM (``--hf-overrides``), and what converts a model's
    config. Linear scaling is position interpolation: the frequencies are divided instead of the
    positions, which is the same but for rounding (1.5e-2 in log-probabilities at some thousand
    tokens, in float32). Runtimes take it for a longer context window, too.

    Args:
        method: position interpolation in all layers, or LPES with one number for all.
        config: of the decoder, as `transformers.AutoConfig` gives it.

    Returns:
        All of the new ``rope_parameters``, by layer type where the model's are.

    Raises:
        MethodConfigError: another method, or one that differs by layer; or a scale below 1.
        UnsupportedArchitectureError: the model has no rotary positions, or scales them in a way
            that does not go together with linear scaling.
    """
    scale = _scale(method)
    if scale < 1:
        raise MethodConfigError(
            f"A scale of {scale} draws positions apart, and runtimes take factors from 1 on."
        )
    parameters = getattr(config, "rope_parameters", None)
    if not parameters:
        raise UnsupportedArchitectureError(
            config.model_type,
            reason="its config has no rope_parameters.",
            alternative="Export for a model with rotary positions, such as a LLaMA or Qwen.",
        )
    if "rope_type" in parameters or not all(isinstance(v, Mapping) for v in parameters.values()):
        return _scaled(parameters, scale, config.model_type)
    return {
        layer_type: _scaled(of_type, scale, config.model_type)
        for layer_type, of_type in parameters.items()
    }


def _scale(method: Method) -> float:
    if isinstance(method, PositionInterpolation) and method.layers is None:
        return method.scale
    if isinstance(method, LPES) and not isinstance(method.factors, tuple):
        return method.factors
    raise MethodConfigError(
        f"{method.name} with these parameters is no linear scaling of all layers alike, which is "
        "all that rope_parameters can say. In vLLM, the plugin rag-middle-vllm serves lpes with a "
        "factor per layer, and position_interpolation with chosen layers."
    )


def _scaled(parameters: Mapping[str, Any], scale: float, model_type: str) -> dict[str, Any]:
    kind = parameters.get("rope_type", "default")
    if kind not in ("default", "linear"):
        raise UnsupportedArchitectureError(
            model_type,
            reason=f"its positions have {kind} scaling, and a config names one kind: linear "
            "scaling would replace it.",
            alternative="Use the method with RagMiddleModel, or in vLLM with the plugin "
            "rag-middle-vllm: they divide positions under the model's own scaling.",
        )
    own = parameters.get("factor", 1.0) if kind == "linear" else 1.0  # elsewhere it has no effect
    return {**parameters, "rope_type": "linear", "factor": scale * own}
