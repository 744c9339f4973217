"""Several methods at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, ClassVar

from rag_middle.attention.plan import AttentionPlan
from rag_middle.attention.traits import ModelTraits
from rag_middle.errors import IncompatibleMethodsError, MethodConfigError
from rag_middle.layout import PromptLayout
from rag_middle.methods.base import Method, MethodInfo, as_several
from rag_middle.methods.ms_poe import MsPoE
from rag_middle.methods.none import NoMethod
from rag_middle.methods.pine import PINE
from rag_middle.methods.positional_hidden_states import PositionalHiddenStates
from rag_middle.methods.rotor import RoToR
from rag_middle.methods.self_extend import SelfExtend
from rag_middle.tokens import TokenizedPrompt

if TYPE_CHECKING:
    from torch import Tensor

    from rag_middle.methods.runner import Runner

__all__ = ["Compose"]

#: Pairs whose plans touch different things and would still undo each other.
_REFUSED: tuple[tuple[type[Method], type[Method], str], ...] = (
    (PINE, PositionalHiddenStates, "PINE computes the very rows whose attention is scaled"),
    (
        MsPoE,
        PositionalHiddenStates,
        "Ms-PoE ranks heads by un-rotated keys, of which scaled channels would make two sets",
    ),
    (
        SelfExtend,
        PositionalHiddenStates,
        "Self-Extend rotates keys twice, and scaled channels are worked into keys rotated once",
    ),
)

#: Methods that make the order of documents immaterial.
_ALONE: tuple[type[Method], ...] = (PINE, RoToR)


@dataclass(frozen=True, kw_only=True)
class Compose(Method):
    """The plans of several methods, merged layer by layer.

    SIW goes with every method that decides positions or hidden states other than PINE and RoToR,
    positional hidden states with position interpolation and LPES. Refused, with the reason: two
    methods that decide the same thing in a layer, PINE and RoToR with anything, and Ms-PoE with
    positional hidden states. Rows that attend with scaled channels (the last prompt row, by
    default) are not reweighted by SIW.

    Attributes:
        methods: at least one; their `arrange` hooks run in this order. One of them may combine
            several forward passes; the others' plans hold in each of those.

    Raises:
        IncompatibleMethodsError: a refused pair.
        MethodConfigError: no methods.
    """

    registered_name: ClassVar[str] = "compose"
    info: ClassVar[MethodInfo] = MethodInfo(
        title="Compose",
        paper="",
        idea="Several methods at once, where they decide different things (SIW with LPES, say).",
        cost="the sum of its parts",
        requires="what its parts require",
    )

    methods: tuple[Method, ...] = ()

    def __post_init__(self) -> None:
        given = as_several("Compose", "methods", self.methods, "method objects")
        object.__setattr__(self, "methods", given)
        if not self.methods:
            raise MethodConfigError(
                "Compose needs at least one method: 'siw+lpes', or "
                "Compose(methods=(SIW(), LPES()))."
            )
        parts: tuple[object, ...] = self.methods
        stray = [part for part in parts if not isinstance(part, Method)]
        if stray:
            raise MethodConfigError(f"Compose takes method objects, got {stray[0]!r}.")
        for first, second, reason in _REFUSED:
            if self._has(first) and self._has(second):
                raise IncompatibleMethodsError(
                    f"{first.registered_name} and {second.registered_name} do not compose: "
                    f"{reason}. Use one of them."
                )
        combining = [part.name for part in self.parts if part.combines]
        if len(combining) > 1:
            raise IncompatibleMethodsError(
                f"{' and '.join(combining)} do not compose: each combines several forward passes "
                "of its own. Use one of them."
            )
        active = [part for part in self.parts if not isinstance(part, NoMethod)]
        for kind in _ALONE:
            if self._has(kind) and len(active) > 1:
                name = kind.registered_name
                others = ", ".join(m.name for m in active if not isinstance(m, kind))
                raise IncompatibleMethodsError(
                    f"{name} does not compose with {others or f'another {name}'}: it decides "
                    "positions and visibility, and a change by document order would undo its "
                    "invariance. Use it alone."
                )

    @property
    def parts(self) -> tuple[Method, ...]:
        """The methods, those of inner compositions among them."""
        return tuple(part for method in self.methods for part in method.parts)

    def _has(self, kind: type[Method]) -> bool:
        return any(isinstance(part, kind) for part in self.parts)

    def arrange(self, prompt: TokenizedPrompt, runner: Runner) -> Sequence[int]:
        """Each method's arrangement, one after the other."""
        order: Sequence[int] = range(len(prompt.layout.documents))
        for method in self.methods:
            step = method.arrange(prompt, runner)
            prompt, order = prompt.select(step), [order[index] for index in step]
        return order

    def branches(self, prompt: TokenizedPrompt, runner: Runner) -> Sequence[Sequence[int]]:
        """Those of the method that combines, if one does."""
        method = self._combining()
        if method is None:
            return super().branches(prompt, runner)
        return method.branches(prompt, runner)

    def combine(self, logits: Tensor) -> Tensor:
        """What that method makes of them."""
        method = self._combining()
        return super().combine(logits) if method is None else method.combine(logits)

    @property
    def combines(self) -> bool:
        """True where a part does."""
        return self._combining() is not None

    @property
    def arranges(self) -> bool:
        """True where a part does."""
        return any(method.arranges for method in self.methods)

    def _combining(self) -> Method | None:
        return next((method for method in self.methods if method.combines), None)

    def plan(self, layouts: tuple[PromptLayout, ...], traits: ModelTraits) -> AttentionPlan:
        """All plans merged."""
        plans = (method.plan(layouts, traits) for method in self.methods)
        return reduce(AttentionPlan.merge, plans)

    @property
    def is_neutral(self) -> bool:
        """True where all parts are."""
        return all(method.is_neutral for method in self.methods)

    @property
    def on_short_prompts(self) -> Method:
        """The same of all parts."""
        return Compose(methods=tuple(method.on_short_prompts for method in self.methods))

    @property
    def needs_documents(self) -> bool:
        """True where any part does."""
        return any(method.needs_documents for method in self.methods)
