"""Position interpolation as a setting that every runtime knows: `rope_parameters` of a config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rag_middle.errors import MethodConfigError, UnsupportedArchitectureError
from rag_middle.methods.base import Method
from rag_middle.methods.lpes import LPES
from rag_middle.methods.position_interpolation import PositionInterpolation

__all__ = ["exported_rope_parameters"]


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
