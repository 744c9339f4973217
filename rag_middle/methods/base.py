"""What a method is: a frozen dataclass that turns prompts into an attention plan.

And what it is handed: `Runner`, the model as far as methods may use it while they put documents in
order. `Provenance` is kept beside a method whose parameters a profile sets.
"""

from __future__ import annotations

import copy
from abc import ABC
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, ClassVar, Protocol, Self, TypeVar

from rag_middle.attention import AttentionPlan, ModelTraits
from rag_middle.documents import ContextPrompt
from rag_middle.errors import MethodConfigError
from rag_middle.methods.rules import truth
from rag_middle.profiles import ModelFacts, Profile
from rag_middle.registry import Registry
from rag_middle.tokens import TokenizedPrompt

if TYPE_CHECKING:
    from torch import Tensor

#: Text or tokens; a method gives back what it got.
AnyPrompt = TypeVar("AnyPrompt", ContextPrompt, TokenizedPrompt)


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodInfo:
    """What users are told about a method; tables in the docs are made from it.

    Attributes:
        title: its name in print.
        paper: where it comes from, with the arXiv number; empty for no paper.
        idea: one sentence.
        cost: what it costs next to the unmodified model.
        requires: what the model must have.
        can_hurt_when: under which conditions answers can become worse than without it.
    """

    title: str
    paper: str = ""
    idea: str
    cost: str = "not said"
    requires: str = "not said"
    can_hurt_when: str = "not said"


class Runner(Protocol):
    """Runs the model of a request. Every call is a forward pass, or several."""

    @property
    def traits(self) -> ModelTraits:
        """What the model is like."""
        ...

    def last_token_attention(self, prompt: TokenizedPrompt) -> Tensor:
        """Attention of the prompt's last token, in one pass of the unmodified model.

        Returns:
            `[layers, h, l]` in float32 on the CPU: weights after the softmax, over the prompt's
            tokens, of each layer with softmax attention, from the first to the last.

        Raises:
            UnsupportedArchitectureError: its attention layers cannot be reached.
        """
        ...

    def logits(self, prompt: TokenizedPrompt, method: Method | None = None) -> Tensor:
        """Next-token logits `[v]` in float32 after the prompt, as it is, under `method`.

        `method` is used for its plan only; ``None`` is the unmodified model.
        """
        ...

    def token_ids(self, text: str) -> tuple[int, ...]:
        """Ids of text inside a prompt (a dummy document, say)."""
        ...


class Method(ABC):
    """A way to make a model read its prompt differently, said in at most four hooks.

    `rewrite` asks another prompt (the documents twice, say), `arrange` puts the documents in order
    before the model reads them, `plan` tells its attention layers what to do, `combine` makes one
    distribution out of several forward passes, whose prompts `branches` names. Most methods need
    one of them.

    Subclasses are frozen, keyword-only dataclasses that validate themselves when made. They keep
    nothing of a request: one object may serve any number of threads.

    Raises:
        MethodConfigError: an option that does not follow its rule, or does not go with another.
    """

    #: Under which the method is registered.
    name: ClassVar[str]
    #: Without one, the title is made of the name, and the idea is the docstring's first paragraph.
    info: ClassVar[MethodInfo]

    #: Methods that this one does not compose with, by registered name, and why; ``"*"`` for all.
    conflicts: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls) -> None:
        if "name" in vars(cls) and "info" not in vars(cls):
            idea = (cls.__doc__ or "").partition("\n\n")[0]
            title = cls.name.replace("_", " ").capitalize()
            cls.info = MethodInfo(title=title, idea=" ".join(idea.split()))

    def __post_init__(self) -> None:
        """Check every option by its rule (`rag_middle.methods.rules`).

        A subclass with more to check calls this first.
        """
        for parameter in fields(self):  # type: ignore[arg-type]  # methods are dataclasses
            value = getattr(self, parameter.name)
            rule = parameter.metadata.get("rule")
            if rule is None and isinstance(parameter.default, bool):
                rule = truth
            if rule is not None and not (value is None and parameter.default is None):
                value = rule(f"{type(self).__name__}: {parameter.name}", value)
                object.__setattr__(self, parameter.name, value)  # frozen

    @property
    def parts(self) -> tuple[Method, ...]:
        """The methods this one is made of, compositions taken apart; itself where it is none."""
        return (self,)

    @property
    def provenance(self) -> Provenance | None:
        """The profile that the parameters come from, ``None`` where they do not.

        It is no parameter: methods of equal parameters are equal, and a method that
        `dataclasses.replace` makes with others comes from no profile.
        """
        return vars(self).get("_provenance")

    def with_provenance(self, provenance: Provenance) -> Self:
        """The same method, beside where its parameters come from."""
        method = copy.copy(self)
        object.__setattr__(method, "_provenance", provenance)  # dataclasses of methods are frozen
        return method

    def check_fits(self, traits: ModelTraits) -> None:
        """Refuse a model of another shape than that which the parameters were fitted to.

        Raises:
            MethodConfigError: it has another shape.
        """
        for part in self.parts:
            # An order of documents goes with any shape; `warn_of_mismatch` tells of another.
            if part.provenance is None or part.arranges:
                continue
            fitted_to = part.provenance.profile.model
            if differences := fitted_to.shape_differences(shape_of(traits)):
                raise MethodConfigError(
                    f"{part.provenance.source} was made for {fitted_to.id}, a model of another "
                    f"shape: {'; '.join(differences)}. Calibrate for this model, or use the "
                    "profile with the model that it was made for."
                )

    def check_plan_suffices(
        self, prompts: tuple[TokenizedPrompt, ...], traits: ModelTraits
    ) -> None:
        """Refuse where a part of the method is nothing but hooks that `applied` does not follow.

        Raises:
            MethodConfigError: there is one, and it is not neutral.
        """
        several = any(len(prompt.layout.documents) > 1 for prompt in prompts)
        for part in self.parts:
            others = part.rewrites or (several and (part.arranges or part.combines))
            if others and not part.is_neutral and not part.plan(prompts, traits).layers:
                raise MethodConfigError(
                    f"applied() reads prompts as they are, and {part.name} leaves attention alone: "
                    "it changes prompts, or combines several passes. Use RagMiddleModel, or pass "
                    "prepared=True with prompts from RagMiddleModel.encode(prompt, method=...)."
                )

    def rewrite(self, prompt: AnyPrompt) -> AnyPrompt:
        """The prompt that is asked instead: hook before everything else.

        It gets what the caller passes: text with its documents marked, before a chat template is
        put around it, or tokens. `arrange` can only permute the documents; what repeats them, or
        the question, needs this hook.

        Args:
            prompt: as the caller wrote it.

        Raises:
            PromptError: the method needs text where there are tokens.
        """
        return prompt

    def arrange(self, prompt: TokenizedPrompt, runner: Runner) -> Sequence[int]:
        """The order in which the documents reach the model: hook before the model.

        Args:
            prompt: in tokens, what does not fit left out already; its ``scores`` and
                ``document_ids`` are those of its documents.
            runner: runs the model, for methods that look at what it does with a prompt.

        Returns:
            Each document's 0-based index once; document ``order[i]`` goes to position ``i``.
        """
        return range(len(prompt.layout.documents))

    def plan(self, prompts: tuple[TokenizedPrompt, ...], traits: ModelTraits) -> AttentionPlan:
        """What the attention layers shall do: hook in the model. By default, what they always do.

        Args:
            prompts: of the batch, in tokens, as arranged. Where the method has branches, each
                branch is a prompt of its own, and a prompt's branches follow one another.
            traits: the model.

        Raises:
            UnsupportedArchitectureError: this model cannot take this method.
            MethodConfigError: parameters that do not fit this model.
        """
        return AttentionPlan()

    def branches(self, prompt: TokenizedPrompt, runner: Runner) -> Sequence[Sequence[int]]:
        """What each of several forward passes reads, for methods that `combine` them.

        Args:
            prompt: as arranged.
            runner: as for `arrange`.

        Returns:
            One selection per branch, at least one: 0-based documents in their order. The same
            selection may come again (branches that differ in their plan), and a selection may
            leave documents out.
        """
        return (range(len(prompt.layout.documents)),)

    def combine(self, logits: Tensor) -> Tensor:
        """One distribution from those of the branches: hook after the model, at every token.

        Args:
            logits: float32 `[..., N, v]`, branch by branch; every branch has read its own version
                of the prompt and the same generated tokens.

        Returns:
            Logits or log-probabilities `[..., v]`.
        """
        raise NotImplementedError(f"{self.name} has no branches to combine")

    @property
    def combines(self) -> bool:
        """True where the method takes several forward passes per token (see `combine`)."""
        return type(self).combine is not Method.combine

    def for_row(self, row: int) -> Method:
        """The method that reads one row of a batch alone as this one reads it in the batch.

        Used where its plan is nothing but rotary tables (`LayerChange.rotation`).

        Args:
            row: 0-based; the branches of a prompt follow one another.
        """
        return self

    @property
    def rewrites(self) -> bool:
        """True where the method may send another prompt than it was asked (see `rewrite`)."""
        return any(type(part).rewrite is not Method.rewrite for part in self.parts)

    @property
    def arranges(self) -> bool:
        """True where the method may reorder documents (see `arrange`)."""
        return any(type(part).arrange is not Method.arrange for part in self.parts)

    @property
    def is_neutral(self) -> bool:
        """True where the parameters leave every model's logits as they are.

        That is where all options that have a neutral value have it.
        """
        neutral = [
            (getattr(self, parameter.name), parameter.metadata["neutral"])
            for parameter in fields(self)  # type: ignore[arg-type]
            if parameter.metadata.get("neutral", ...) is not ...
        ]
        return bool(neutral) and all(
            all(item == same for item in (value if isinstance(value, tuple) else (value,)))
            for value, same in neutral
        )

    def for_self_check(self) -> Method:
        """This method, or one like it, that changes prompts of three documents of a few tokens.

        A model is run with it once, to prove that the method reaches its layers.
        """
        return self

    @classmethod
    def example(cls) -> Self:
        """The method with example values where it has no defaults.

        It shows whether a model can take the method at all, and is no setting to be used.
        """
        examples = {
            parameter.name: parameter.metadata["example"]
            for parameter in fields(cls)  # type: ignore[arg-type]
            if "example" in parameter.metadata
        }
        return cls(**examples)

    @property
    def order_free(self) -> bool:
        """True if answers do not depend on the order in which documents are given."""
        return False

    @property
    def needs_documents(self) -> bool:
        """True if the method does nothing without marked documents."""
        return False


def chosen_layers(
    layers: Iterable[int] | None,
    traits: ModelTraits,
    *,
    default: range | None = None,
    rotated: bool = False,
) -> tuple[int, ...]:
    """The layers to change that can be changed: `layers`, else `default`, else all.

    Args:
        layers: 0-based, as the user named them.
        traits: the model; its layers without softmax attention are left out.
        default: used where `layers` is ``None``.
        rotated: leave layers without rotary positions out as well.

    Raises:
        MethodConfigError: a layer that the model does not have, or none that can be changed.
    """
    every = range(traits.num_layers) if default is None else default
    chosen = tuple(every if layers is None else layers)
    outside = [layer for layer in chosen if not 0 <= layer < traits.num_layers]
    if outside:
        raise MethodConfigError(
            f"Layers {outside} do not exist in this {traits.model_type} model: it has layers 0 to "
            f"{traits.num_layers - 1}."
        )
    if not traits.layers:
        return chosen
    able = [i for i, layer in traits.layers.items() if layer.uses_rope or not rotated]
    left = tuple(layer for layer in chosen if layer in able)
    if not left:  # running the unmodified model instead would go unnoticed
        raise MethodConfigError(
            f"None of the layers {list(chosen)} of this {traits.model_type} model has "
            f"{'rotary positions' if rotated else 'softmax attention'}: choose from {able}."
        )
    return left


#: Every method by name, filled by `registered`; entry points of other packages are found on first
#: need.
METHODS: Registry[type[Method]] = Registry(
    "method", entry_point_group="rag_middle.methods", base=Method
)


def shape_of(traits: ModelTraits) -> ModelFacts:
    """What a profile says of how a model is built."""
    first = next(iter(traits.layers.values()), None)
    return ModelFacts(
        id="",
        model_type=traits.model_type,
        layers=traits.num_layers,
        hidden_size=traits.hidden_size,
        heads=first.heads if first else None,
        kv_heads=first.kv_heads if first else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where a method's parameters come from: kept beside the method, as `Method.provenance`.

    Attributes:
        source: by which they are chosen: ``profile:PATH``, or a preset, ``METHOD:PRESET``.
        profile: that sets them.
    """

    source: str
    profile: Profile = field(repr=False)
