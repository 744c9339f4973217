"""Methods that are one function of a layer's attention call: bases that spare them the rest."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from rag_middle.attention import (
    Aspect,
    AttentionContext,
    AttentionPlan,
    Layer,
    LayerChange,
    LayerHandler,
    ModelTraits,
)
from rag_middle.errors import MethodConfigError, PromptError
from rag_middle.layout import PromptLayout
from rag_middle.methods.base import Method, chosen_layers
from rag_middle.methods.requirements import (
    require_interface,
    require_known_rotation,
    require_rope,
)
from rag_middle.tokens import TokenizedPrompt

if TYPE_CHECKING:
    from torch import Tensor

#: Output `[b, n, h, dv]` of an attention call, and weights where there are any.
Attention: TypeAlias = "tuple[Tensor, Tensor | None]"


class AttentionMethod(Method, LayerChange):
    """A method that is itself the change of its layers: it says what it `claims`, and `attend`.

    One that keeps something of a request returns a handler of its own from `start` instead. Layers
    are those of an option ``layers``, where the method has one that is set, or `default_layers`;
    those without softmax attention are left out, and those without rotary positions where the
    method claims positions.
    """

    def default_layers(self, traits: ModelTraits) -> range:
        """Layers that are changed where nobody names any: all."""
        return range(traits.num_layers)

    def plan(self, prompts: tuple[TokenizedPrompt, ...], traits: ModelTraits) -> AttentionPlan:
        """The method in each of its layers.

        Raises:
            UnsupportedArchitectureError: the attention layers cannot be reached; or their rotation
                is none, or not known, where the method claims positions.
            MethodConfigError: layers that the model does not have.
        """
        rotates = "positions" in self.claims
        (require_rope if rotates else require_interface)(self.name, traits)
        named = getattr(self, "layers", None)
        if self.defers_rotation:  # first: the default layers may be none where it is unknown
            rotated = chosen_layers(named, traits, rotated=True)
            require_known_rotation(self.name, traits, rotated)
        layers = chosen_layers(named, traits, default=self.default_layers(traits), rotated=rotates)
        return AttentionPlan.uniform(layers, self)

    def start(self, layer: Layer) -> LayerHandler:
        """Carries out the method in one layer during one request."""
        return Attending(self.attend)

    def attend(self, context: AttentionContext) -> Attention:
        """Answer an attention call, or change it and `AttentionContext.proceed`."""
        return context.proceed()


class DocumentMethod(Method):
    """A method that is a number for each document, and what attention makes of the numbers.

    Class attributes:
        claims, has_gradients: as those of `LayerChange`.
        needs_scores: refuse documents that the retriever has not scored.
    """

    needs_documents = True
    claims: ClassVar[frozenset[Aspect]] = frozenset({"weights"})
    has_gradients: ClassVar[bool] = False
    needs_scores: ClassVar[bool] = False

    def per_document(self, prompt: TokenizedPrompt) -> Sequence[float]:
        """A number for each document of a prompt that has some."""
        raise NotImplementedError(f"{self.name} has no numbers by document")

    @abstractmethod
    def attend(self, context: AttentionContext, values: tuple[tuple[float, ...], ...]) -> Attention:
        """Answer an attention call, or change it and `AttentionContext.proceed`.

        Args:
            context: of the call; `by_document` spreads `values` over its columns.
            values: of each prompt, one number for each document.
        """

    def plan(self, prompts: tuple[TokenizedPrompt, ...], traits: ModelTraits) -> AttentionPlan:
        """The method in the layers of its option ``layers``, if any, or in all.

        Raises:
            UnsupportedArchitectureError: the attention layers cannot be reached.
            MethodConfigError: layers that the model does not have.
            PromptError: a document without a score, where the method needs one.
        """
        require_interface(self.name, traits)
        change = DocumentChange(self, tuple(self._numbers(prompt) for prompt in prompts))
        return AttentionPlan.uniform(chosen_layers(getattr(self, "layers", None), traits), change)

    def _numbers(self, prompt: TokenizedPrompt) -> tuple[float, ...]:
        if not prompt.layout.documents:
            return ()
        if self.needs_scores and prompt.scores is None:
            raise PromptError(
                f'{self.name} needs a score of every document: set Document.metadata["score"]. '
                "Text with markers carries none: pass documents as objects."
            )
        return tuple(self.per_document(prompt))


@dataclass(frozen=True, slots=True)
class DocumentChange(LayerChange):
    """A `DocumentMethod` in a layer, with its numbers for the prompts of a batch, if it has any."""

    method: DocumentMethod
    values: tuple[tuple[float, ...], ...]

    @property
    def claims(self) -> frozenset[Aspect]:  # type: ignore[override]
        return self.method.claims

    @property
    def has_gradients(self) -> bool:  # type: ignore[override]
        return self.method.has_gradients

    def check(self, layouts: Sequence[PromptLayout]) -> None:
        """Raise `MethodConfigError` unless there is a number for each document."""
        for example, (values, layout) in enumerate(zip(self.values, layouts, strict=False)):
            if len(values) != len(layout.documents):
                raise MethodConfigError(
                    f"Example {example} has {len(layout.documents)} documents but {len(values)} "
                    f"numbers of {self.method.name}: give one for each document."
                )

    def start(self, layer: Layer) -> LayerHandler:
        return Attending(lambda context: self.method.attend(context, self.values))


class Attending(LayerHandler):
    """A handler that keeps nothing: a function answers the attention calls."""

    def __init__(self, answer: Callable[[AttentionContext], Attention]) -> None:
        self._answer = answer

    def attend(self, context: AttentionContext) -> Attention:
        return self._answer(context)
