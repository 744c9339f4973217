"""What is measured on a task: how many questions, the gold document's positions, how to score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from rag_middle.errors import ConfigError, MethodConfigError
from rag_middle.evaluation.conditions import (
    CHANGES,
    Change,
    Condition,
    order,
    position,
    spread_positions,
)
from rag_middle.evaluation.layouts import Layout
from rag_middle.evaluation.tasks.base import Task, require_whole
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
    name = spec.get("name") if isinstance(spec, Mapping) else None
    if not isinstance(name, str) or not set(spec) <= {"name", "options", "label"}:
        raise ConfigError(
            "A method is a name, or an object with 'name' and perhaps 'options' and 'label'; got "
            f"{spec!r}."
        )
    options = spec.get("options") or {}
    if not isinstance(options, Mapping):
        raise MethodConfigError(
            f"The options of {name} should be an object, got {type(options).__name__}."
        )
    return LabelledMethod(str(spec.get("label") or name), resolve_method(name, options))


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """How a task is run.

    Attributes:
        limit: most questions; None for all there are.
        positions: how many positions of the gold document, spread evenly, or the 0-based
            positions themselves; how many columns, for a task that has a `layout`.
        grid: fewer documents than the task has, at whose positions the gold document is measured
            too: ``(5, 10)`` for a task of 20 documents.
        orders: shuffled orders of all documents, for the rate at which answers flip; 0 for none,
            else at least 2.
        controls: also ask the unmodified model with the gold document alone, and with none.
        changes: also ask it with changed prompts at the same positions, see `conditions.CHANGES`.
        scoring: ``"generation"`` writes an answer and compares it; ``"likelihood"`` measures
            the log-likelihood of the right answer, which is cheaper and smoother.
        metric: the main one; None for the task's, and with likelihoods for whether the right
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
    grid: tuple[int, ...] = ()
    orders: int = 0
    controls: bool = False
    changes: tuple[Change, ...] = ()
    scoring: Scoring = "generation"
    metric: str | None = None
    seed: int = 0
    max_new_tokens: int | None = None
    max_batch_size: int = 8
    template: Template = "auto"

    def __post_init__(self) -> None:
        require_whole("evaluation", 1, max_batch_size=self.max_batch_size)
        require_whole("evaluation", 0, orders=self.orders)
        require_whole("evaluation", 0, most=2**63 - 1, seed=self.seed)
        if self.limit is not None:
            require_whole("evaluation", 1, limit=self.limit)
        if self.max_new_tokens is not None:
            require_whole("evaluation", 1, max_new_tokens=self.max_new_tokens)
        if self.orders == 1:
            raise ConfigError("orders=1 leaves nothing to compare: use 0, or 2 and more.")
        if self.scoring not in get_args(Scoring):
            raise ConfigError(
                f"scoring must be one of {', '.join(get_args(Scoring))}, got {self.scoring!r}."
            )
        if self.template not in get_args(Template):
            raise ConfigError(
                f"template must be one of {', '.join(get_args(Template))}, got {self.template!r}."
            )
        for name, several in (("changes", self.changes), ("grid", self.grid)):
            if not isinstance(several, list | tuple):
                raise ConfigError(f"{name} must be a list, got {several!r}.")
        for change in self.changes:
            if change not in CHANGES:
                raise ConfigError(f"A change is one of {', '.join(CHANGES)}; got {change!r}.")
        for number in self.grid:
            require_whole("evaluation", 2, grid=number)
        object.__setattr__(self, "grid", tuple(sorted(set(self.grid))))
        positions: object = self.positions
        if not isinstance(positions, list | tuple):
            require_whole("evaluation", 2, positions=positions)
            return
        for index, value in enumerate(positions):
            require_whole("evaluation", 0, **{f"positions[{index}]": value})
        if len(set(positions)) < 2:
            raise ConfigError(
                f"positions needs at least two different positions, got {list(positions)}."
            )
        object.__setattr__(self, "positions", tuple(sorted(set(positions))))

    def gold_positions(self, task: Task, documents: int | None = None) -> tuple[int, ...]:
        """The 0-based positions at which `task` is measured; none without gold documents.

        Args:
            task: whose prompts they are in.
            documents: one of `grid`, for the positions among so many documents.

        Raises:
            ConfigError: positions that a prompt of the task does not have, or a grid
                with more documents than it has.
        """
        if not task.num_positions and not self.grid:
            return ()
        if self.grid and self.grid[-1] >= task.num_positions:
            raise ConfigError(
                f"grid takes numbers below the {task.num_positions} documents that prompts of "
                f"{task.name} have, got {self.grid[-1]}. Give the task more documents.",
            )
        among = documents or task.num_positions
        if isinstance(self.positions, int):
            return spread_positions(among, self.positions)
        if self.positions[-1] >= task.num_positions:
            raise ConfigError(
                f"Position {self.positions[-1]} does not exist: prompts of {task.name} have "
                f"{task.num_positions} documents, positions 0 to {task.num_positions - 1}."
            )
        positions = tuple(index for index in self.positions if index < among)
        if len(positions) < 2:
            raise ConfigError(
                f"Among {among} documents there are fewer than two of the positions "
                f"{list(self.positions)}. Give a number of positions, or grid without {among}.",
            )
        return positions

    def conditions(self, task: Task) -> tuple[Condition, ...]:
        """The conditions every method is run under."""
        positions = tuple(position(index) for index in self.gold_positions(task))
        if not positions:
            layout = self.layout(task)
            positions = task.conditions() if layout is None else layout.conditions
        return (*positions, *(order(index) for index in range(self.orders)))

    def layout(self, task: Task) -> Layout | None:
        """The conditions of `task` in rows and columns, where it varies more than one position.

        Raises:
            ConfigError: positions by name, a grid or changes for such a task.
        """
        numbered = isinstance(self.positions, int)
        layout = task.layout(self.positions if isinstance(self.positions, int) else 2)
        if layout is not None and (not numbered or self.grid or self.changes):
            raise ConfigError(
                f"{task.name} varies {layout.row_title[0].lower()}{layout.row_title[1:]} instead "
                "of one position, so it takes a number of positions, no grid and no changes "
                "(--change).",
            )
        return layout

    def grid_conditions(self, task: Task) -> tuple[Condition, ...]:
        """The further conditions that `grid` asks for."""
        return tuple(
            position(index, documents)
            for documents in self.grid
            for index in self.gold_positions(task, documents)
        )

    def changed_conditions(self, task: Task) -> tuple[Condition, ...]:
        """The conditions that `changes` asks for, of the unmodified model."""
        return tuple(
            position(index, change=change)
            for change in self.changes
            for index in self.gold_positions(task)
        )

    def control_conditions(self, task: Task) -> tuple[Condition, ...]:
        """What `controls` and `changes` ask the unmodified model besides."""
        return (*(task.controls if self.controls else ()), *self.changed_conditions(task))

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
