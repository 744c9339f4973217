"""What methods ask of a model, and what else fits a model that does not have it."""

from __future__ import annotations

from contextvars import ContextVar

from rag_middle.attention import ModelTraits
from rag_middle.errors import RagMiddleError, UnsupportedArchitectureError
from rag_middle.methods.base import METHODS, Method, chosen_layers
from rag_middle.tokens import TokenizedPrompt

_TWO_DOCUMENTS = TokenizedPrompt.assembled(
    prefix=[1], documents=[[2, 3], [4, 5]], suffix=[6], document_ids=["a", "b"], scores=[1.0, 0.5]
)

#: Set while other methods are tried, which may then be refused without a word.
_trying: ContextVar[bool] = ContextVar("rag_middle_trying_methods", default=False)


def require_interface(method: str, traits: ModelTraits) -> None:
    """Raise `UnsupportedArchitectureError` unless the attention layers can be reached."""
    if traits.obstacle:
        raise unsupported(traits, f"{method} cannot be applied: {traits.obstacle}.")


def require_rope(method: str, traits: ModelTraits) -> None:
    """Raise unless at least one layer's positions come from a rotary embedding."""
    if not any(layer.uses_rope for layer in traits.layers.values()):
        require_interface(method, traits)
        raise unsupported(traits, f"{method} changes rotary positions, and this model has none.")


def require_known_rotation(method: str, traits: ModelTraits, layers: tuple[int, ...]) -> None:
    """Raise unless queries and keys of these layers can be rotated as the model does."""
    unknown = [
        layer
        for layer in layers
        if traits.layers[layer].uses_rope and traits.layers[layer].rotary is None
    ]
    if unknown:
        raise unsupported(
            traits,
            f"{method} rotates queries and keys itself, and the rotation of layers {unknown} "
            "follows no pairing of head dimensions it knows.",
        )


def layers_by_document(
    method: str, traits: ModelTraits, *, repositions: bool = True, rotates: str | None = None
) -> tuple[int, ...]:
    """All layers of a model whose tokens shall not read documents from left to right.

    Args:
        method: its registered name, for the errors.
        traits: the model's.
        repositions: whether documents get rotary positions of their own.
        rotates: what the method rotates document by document once more: ``"queries"``, ``"keys"``.

    Raises:
        UnsupportedArchitectureError: layers that read in order, without softmax attention or
            beside it, an attention that cannot be reached, positions that are not rotary where they
            change, or a rotation that is not understood or is followed by norms.
    """
    require_interface(method, traits)
    if traits.mixed:
        raise unsupported(
            traits,
            f"{method} decides what documents attend to, and "
            f"{traits.reading_in_order} of this model's {traits.num_layers} layers have no softmax "
            "attention, or another mixer beside it: they read the prompt from left to right.",
        )
    if repositions and traits.rope_type is None:
        raise unsupported(
            traits,
            f"{method} gives documents other rotary positions, and this model's positions come "
            "from elsewhere (learned embeddings or ALiBi).",
        )
    layers = chosen_layers(None, traits)
    # Also where nothing is rotated: attention in chunks and shared latents come with unknown ones.
    require_known_rotation(method, traits, layers)
    if rotates and any(traits.layers[layer].norms_after_rope for layer in layers):
        raise unsupported(
            traits,
            f"{method} rotates {rotates} by document, and this model normalises them after the "
            "rotation.",
        )
    return layers


def unsupported(traits: ModelTraits, reason: str) -> UnsupportedArchitectureError:
    """The error that refuses this model: with the reason, and the methods that fit it."""
    if _trying.get():
        return traits.unsupported(reason, "")
    fitting = fitting_methods(traits)
    advice = f"Methods that fit this model: {', '.join(fitting)}." if fitting else ""
    other = "Or use a model with rotary positions and softmax attention, such as a LLaMA or Qwen."
    return traits.unsupported(reason, f"{advice} {other}".strip())


def fitting_methods(traits: ModelTraits) -> tuple[str, ...]:
    """Registered methods that can change something about this model, tried with examples."""
    token = _trying.set(True)
    try:
        others = [name for name in METHODS if name != "none"]
        return tuple(name for name in others if _fits(METHODS.get(name), traits))
    finally:
        _trying.reset(token)


def _fits(method: type[Method], traits: ModelTraits) -> bool:
    try:
        method_object = method.example()
    except RagMiddleError:
        return False  # it is made of others
    try:
        method_object.plan((_TWO_DOCUMENTS,), traits)
    except UnsupportedArchitectureError:
        return False
    except RagMiddleError:
        return True  # with other parameters, which have to be fitted or trained
    return True
