"""A whole evaluation in a file: models x tasks x methods, YAML.

::

    title: Multi-document question answering
    models:
      - name: lmsys/vicuna-7b-v1.5
        dtype: float16
        methods: [positional_hidden_states:llama-2-7b-chat]   # for this model only
    tasks:
      - task: multi_document_qa
        label: NQ, 10 documents
        options: {data: nq-open-gold.jsonl.gz, documents: 10}
        measurement: {positions: [0, 4, 9]}                   # for this task only
    methods: [ms_poe, {name: lpes, options: {factors: 1.2}, label: lpes 1.2}]
    measurement: {limit: 500}
    source: arXiv:2606.27705
    published:
      - {model: lmsys/vicuna-7b-v1.5, task: "NQ, 10 documents", method: ms_poe, mean: 63.5}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import yaml

from rag_middle import EvaluationConfigError
from rag_middle.evaluation import (
    TASKS,
    LabelledMethod,
    Measurement,
    Task,
    check_measurement,
    labelled_methods,
    make_task,
)
from rag_middle_reproduce import tasks as _tasks  # noqa: F401 - registers them

__all__ = ["EvaluationConfig", "ModelConfig", "Published", "TaskConfig", "read_config"]


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A model to evaluate.

    Attributes:
        name: directory or hub name.
        dtype: of the weights.
        revision: on the hub.
        attn_implementation: of the model.
        context_window: tokens, instead of what the model's config says.
        methods: for this model besides those for all.
    """

    name: str
    dtype: str = "auto"
    revision: str | None = None
    attn_implementation: str | None = None
    context_window: int | None = None
    methods: tuple[Any, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """A task to evaluate on.

    Attributes:
        task: its registered name.
        label: tells it from the same task with other options; by default its name.
        options: of the task; relative paths are in the data folder.
        measurement: fields of `Measurement` for this task only.
    """

    task: str
    label: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    measurement: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", self.label or self.task)

    def make(self, data: Path) -> Task:
        """The task, with its files in the folder `data`."""
        options = dict(self.options)
        for parameter in fields(TASKS.get(self.task)):
            if "Path" in str(parameter.type) and options.get(parameter.name):
                options[parameter.name] = data / options[parameter.name]
        return make_task(self.task, options)


@dataclass(frozen=True, kw_only=True)
class Published:
    """A number from a paper: theirs, for comparison.

    Attributes:
        model: name of the model in this configuration.
        task: label of the task.
        method: label of the method, or the name of one that is not run here.
        mean: over positions, in per cent.
    """

    model: str
    task: str
    method: str
    mean: float


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """What to evaluate.

    Attributes:
        title: of the tables.
        models: each is loaded once.
        tasks: each is run on every model.
        methods: under which, besides the unmodified model.
        measurement: fields of `Measurement` for all tasks.
        cost: measure times and memory too.
        source: of the published numbers.
        published: numbers to show beside.
    """

    title: str
    models: tuple[ModelConfig, ...]
    tasks: tuple[TaskConfig, ...]
    methods: tuple[Any, ...] = ()
    measurement: Mapping[str, Any] = field(default_factory=dict)
    cost: bool = False
    source: str = ""
    published: tuple[Published, ...] = ()

    def measurement_of(self, task: TaskConfig) -> Measurement:
        """How a task is measured."""
        values = {**self.measurement, **task.measurement}
        names = [field.name for field in fields(Measurement)]
        for name in values:
            if name not in names:
                raise EvaluationConfigError(
                    f"A measurement has no {name!r}. It has {', '.join(names)}."
                )
        return Measurement(**values)

    def methods_of(self, model: ModelConfig) -> tuple[LabelledMethod, ...]:
        """What is compared on a model, the unmodified model first."""
        return labelled_methods([*self.methods, *model.methods])

    def limited(self, limit: int | None) -> EvaluationConfig:
        """The same with at most so many questions for every task; None changes nothing."""
        if limit is None:
            return self
        tasks = (replace(t, measurement={**t.measurement, "limit": limit}) for t in self.tasks)
        return replace(self, tasks=tuple(tasks))

    def with_models(self, names: list[str] | None) -> EvaluationConfig:
        """The same with these of its models only; None changes nothing."""
        if not names:
            return self
        models = {model.name: model for model in self.models}
        for name in names:
            if name not in models:
                raise EvaluationConfigError(
                    f"The configuration has no model {name!r}. It has {', '.join(models)}."
                )
        return replace(self, models=tuple(models[name] for name in names))

    def check(self, data: Path) -> None:
        """Refuse what cannot be run, before any model is loaded.

        Raises:
            EvaluationConfigError, EvaluationDataError, UnknownNameError, MethodConfigError: why.
        """
        for kind, names in (
            ("models", [model.name for model in self.models]),
            ("tasks", [task.label for task in self.tasks]),
        ):
            if not names or len(set(names)) < len(names):
                raise EvaluationConfigError(
                    f"{self.title} should have at least one of its {kind}, under different names; "
                    f"got {names}."
                )
        for model in self.models:
            for task in self.tasks:
                check_measurement(
                    task.make(data), self.methods_of(model), self.measurement_of(task)
                )


def read_config(path: str | Path) -> EvaluationConfig:
    """Read a configuration.

    Raises:
        EvaluationConfigError: it cannot be read, or has fields that there are not.
    """
    path = Path(path)
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise EvaluationConfigError(
            f"The configuration {str(path)!r} cannot be read ({error}). Pass a YAML file."
        ) from error
    config: EvaluationConfig = _parsed(EvaluationConfig, content, path.name)
    return replace(
        config,
        models=tuple(_parsed(ModelConfig, model, path.name) for model in config.models),
        tasks=tuple(_parsed(TaskConfig, task, path.name) for task in config.tasks),
        methods=tuple(config.methods),
        published=tuple(_parsed(Published, score, path.name) for score in config.published),
    )


def _parsed(kind: type, content: Any, name: str) -> Any:
    try:
        return kind(**content)
    except TypeError as error:  # no mapping, a field too many or one missing
        names = ", ".join(field.name for field in fields(kind))
        raise EvaluationConfigError(
            f"{name}: a {kind.__name__} has the fields {names}; got {content!r} ({error})."
        ) from error
