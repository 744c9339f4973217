"""No method at all, and several at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import permutations
from typing import TYPE_CHECKING, Any, ClassVar

from rag_middle.attention import AttentionPlan, ModelTraits
from rag_middle.errors import IncompatibleMethodsError, MethodConfigError
from rag_middle.methods.base import AnyPrompt, Method, MethodInfo
from rag_middle.methods.rules import option, several
from rag_middle.tokens import TokenizedPrompt

if TYPE_CHECKING:
    from torch import Tensor

    from rag_middle.methods.base import Runner


@dataclass(frozen=True, kw_only=True)
class NoMethod(Method):
    """The unmodified model, and the baseline of every comparison.

    Works with every causal language model, also those that no other method supports.
    """

    name: ClassVar[str] = "none"
    info: ClassVar[MethodInfo] = MethodInfo(
        title="None",
        paper="",
        idea="The model as it is: the baseline, and often the right choice.",
        cost="none",
        requires="any causal language model",
        can_hurt_when="the model reads some positions worse: it leaves that as it is",
    )

    @property
    def is_neutral(self) -> bool:
        """Always."""
        return True


def _a_method(name: str, value: Any) -> Method:
    if not isinstance(value, Method):
        raise MethodConfigError(f"{name} must be a method object, got {value!r}.")
    return value


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

    name: ClassVar[str] = "compose"
    info: ClassVar[MethodInfo] = MethodInfo(
        title="Compose",
        paper="",
        idea="Several methods at once, where they decide different things (SIW with LPES, say).",
        cost="the sum of its parts",
        requires="what its parts require",
        can_hurt_when="parts were tuned alone: together they can overshoot",
    )

    methods: tuple[Method, ...] = option((), several(_a_method, "method objects"))

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.methods:
            raise MethodConfigError(
                "Compose needs at least one method: 'siw+ms_poe', or "
                "Compose(methods=(SIW(), MsPoE()))."
            )
        active = [part for part in self.parts if not isinstance(part, NoMethod)]
        for part, other in permutations(active, 2):
            reason = part.conflicts.get(other.name, part.conflicts.get("*"))
            if reason is not None:
                raise IncompatibleMethodsError(
                    f"{part.name} does not compose with {other.name}: {reason}."
                )
        combining = [part.name for part in self.parts if part.combines]
        if len(combining) > 1:
            raise IncompatibleMethodsError(
                f"{' and '.join(combining)} do not compose: each combines several forward passes "
                "of its own. Use one of them."
            )

    @property
    def parts(self) -> tuple[Method, ...]:
        """The methods, those of inner compositions among them."""
        return tuple(part for method in self.methods for part in method.parts)

    def rewrite(self, prompt: AnyPrompt) -> AnyPrompt:
        """What each method makes of it, one after the other."""
        for method in self.methods:
            prompt = method.rewrite(prompt)
        return prompt

    def arrange(self, prompt: TokenizedPrompt, runner: Runner) -> Sequence[int]:
        """Each method's arrangement, one after the other."""
        order: Sequence[int] = range(len(prompt.layout.documents))
        for method in self.methods:
            step = method.arrange(prompt, runner)
            prompt, order = prompt.select(step), [order[index] for index in step]
        return order

    @property
    def _combining(self) -> Method:
        """The method that combines several passes; `NoMethod`, which takes one, if none does."""
        return next((method for method in self.methods if method.combines), NoMethod())

    def branches(self, prompt: TokenizedPrompt, runner: Runner) -> Sequence[Sequence[int]]:
        """Those of the method that combines, if one does."""
        return self._combining.branches(prompt, runner)

    def combine(self, logits: Tensor) -> Tensor:
        """What that method makes of them."""
        return self._combining.combine(logits)

    @property
    def combines(self) -> bool:
        """True where a part does."""
        return self._combining.combines

    def plan(self, prompts: tuple[TokenizedPrompt, ...], traits: ModelTraits) -> AttentionPlan:
        """All plans merged."""
        plans = (method.plan(prompts, traits) for method in self.methods)
        return reduce(AttentionPlan.merge, plans)

    def for_row(self, row: int) -> Method:
        """The same of all parts."""
        return Compose(methods=tuple(method.for_row(row) for method in self.methods))

    @property
    def is_neutral(self) -> bool:
        """True where all parts are."""
        return all(method.is_neutral for method in self.methods)

    def for_self_check(self) -> Method:
        """The same of all parts."""
        return Compose(methods=tuple(method.for_self_check() for method in self.methods))

    @property
    def needs_documents(self) -> bool:
        """True where any part does."""
        return any(method.needs_documents for method in self.methods)
