"""What is measured on a task: how many questions, the gold document's positions, how to score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from rag_middle.errors import ConfigError
from rag_middle.evaluation.conditions import AS_GIVEN, Condition, order, position, spread_positions
from rag_middle.evaluation.tasks.base import Task, require_one_of, require_whole
from rag_middle.methods import Method, resolve_method

Scoring = Literal["generation", "likelihood"]
Template = Literal["auto", "chat", "raw"]

BASELINE = "none"


@dataclass(frozen=True, slots=True)
class LabelledMethod:
    """A method and its name in records and charts."""

    label: str
    method: Method


#: A method as people write it: a name, an object, or a mapping with ``name`` and perhaps
#: ``options`` (the method's parameters) and ``label`` (its name in records and charts).
MethodSpec = str | Method | LabelledMethod | Mapping[str, Any]


def labelled_methods(methods: Sequence[MethodSpec]) -> tuple[LabelledMethod, ...]:
    """Methods with their labels, the unmodified model first whether it was named or not.

    Raises:
        ConfigError: two methods with one label, another method labelled ``none``, or a
            mapping of another shape.
        UnknownNameError: no such method.
        MethodConfigError: parameters that the method refuses.
    """
    if isinstance(methods, str | Method | Mapping):
        methods = [methods]
    baseline = LabelledMethod(BASELINE, resolve_method(BASELINE))
    by_label = {BASELINE: baseline}
    for labelled in map(_labelled, methods):
        if labelled == baseline:
            continue
        if labelled.label in by_label:
            raise ConfigError(
                f"Two methods are called {labelled.label!r}. Give one of them another label: "
                "{'name': ..., 'options': {...}, 'label': ...}."
            )
        by_label[labelled.label] = labelled
    return tuple(by_label.values())


def _labelled(spec: MethodSpec) -> LabelledMethod:
    if isinstance(spec, LabelledMethod):
        return spec
    if isinstance(spec, Method):
        return LabelledMethod(spec.name, spec)
    if isinstance(spec, str):
        return LabelledMethod(spec, resolve_method(spec))
    if "name" not in spec or not set(spec) <= {"name", "options", "label"}:
        raise ConfigError(
            "A method is a name, or an object with 'name' and perhaps 'options' and 'label'; got "
            f"{spec!r}."
        )
    method = resolve_method(spec["name"], spec.get("options") or {})
    return LabelledMethod(str(spec.get("label") or spec["name"]), method)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """How a task is run.

    Attributes:
        limit: most questions; None for all there are.
        positions: how many positions of the gold document, spread evenly, or the 0-based
            positions themselves.
        orders: shuffled orders of all documents, for the rate at which answers flip; 0 for none,
            else at least 2.
        controls: also ask the unmodified model with the gold document alone, and with none.
        scoring: ``"generation"`` writes an answer and compares it; ``"likelihood"`` measures
            the log-likelihood of the correct answer, which is cheaper and smoother.
        metric: the main one; None for the task's, and with likelihoods for whether the correct
            answer is the greedy one (``"greedy_match"``).
        seed: of whatever is drawn.
        max_new_tokens: of an answer; None for what the task says.
        max_batch_size: prompts per forward pass.
        template: ``"auto"``, ``"chat"`` or ``"raw"``, as in generation.

    Raises:
        ConfigError: a value that makes no sense.
    """

    limit: int | None = 100
    positions: int | tuple[int, ...] = 5
    orders: int = 0
    controls: bool = False
    scoring: Scoring = "generation"
    metric: str | None = None
    seed: int = 0
    max_new_tokens: int | None = None
    max_batch_size: int = 8
    template: Template = "auto"

    def __post_init__(self) -> None:
        require_whole("evaluation", 1, max_batch_size=self.max_batch_size)
        require_whole("evaluation", 0, orders=self.orders, seed=self.seed)
        for name in ("limit", "max_new_tokens"):
            if (value := getattr(self, name)) is not None:
                require_whole("evaluation", 1, **{name: value})
        if self.orders == 1:
            raise ConfigError("orders=1 leaves nothing to compare: use 0, or 2 and more.")
        require_one_of("evaluation", get_args(Scoring), scoring=self.scoring)
        require_one_of("evaluation", get_args(Template), template=self.template)
        if isinstance(self.positions, int):
            require_whole("evaluation", 2, positions=self.positions)
            return
        require_whole("evaluation", 0, positions=min(self.positions, default=-1))
        object.__setattr__(self, "positions", tuple(sorted(set(self.positions))))

    def gold_positions(self, task: Task) -> tuple[int, ...]:
        """The 0-based positions at which `task` is measured; none without gold documents.

        Raises:
            ConfigError: positions that a prompt of the task does not have.
        """
        if not task.num_positions:
            return ()
        if isinstance(self.positions, int):
            return spread_positions(task.num_positions, self.positions)
        if self.positions[-1] >= task.num_positions:
            raise ConfigError(
                f"Position {self.positions[-1]} does not exist: prompts of {task.name} have "
                f"{task.num_positions} documents, positions 0 to {task.num_positions - 1}."
            )
        return self.positions

    def conditions(self, task: Task, *, controls: bool = False) -> tuple[Condition, ...]:
        """The conditions every method is run under; with the controls, where they are wanted."""
        conditions = tuple(map(position, self.gold_positions(task))) or (AS_GIVEN,)
        further = task.controls if controls and self.controls else ()
        return (*conditions, *map(order, range(self.orders)), *further)

    def metric_names(self, task: Task) -> tuple[str, ...]:
        """The scores of a record; the first is the main one.

        Raises:
            ConfigError: `metric` is none of them.
        """
        names = task.metrics
        if self.scoring == "likelihood":
            names = ("greedy_match", "log_likelihood")
        if self.metric is None:
            return names
        if self.metric not in names:
            raise ConfigError(
                f"{task.name} by {self.scoring} has no metric {self.metric!r}; it has "
                f"{', '.join(names)}."
            )
        return (self.metric, *(name for name in names if name != self.metric))

    def identity(self) -> dict[str, Any]:
        """What must agree for records of two runs to belong together, JSON-ready.

        Questions, positions and orders may be added to a run.
        """
        fixed = ("scoring", "seed", "max_new_tokens", "template")
        return {name: getattr(self, name) for name in fixed}
