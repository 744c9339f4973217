"""A whole evaluation in a file: models x tasks x methods, YAML or JSON.

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
    published:
      source: arXiv:2606.27705
      scores:
        - {model: lmsys/vicuna-7b-v1.5, task: "NQ, 10 documents", method: ms_poe, mean: 63.5}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from rag_middle.errors import EvaluationConfigError, MissingExtraError
from rag_middle.evaluation.measurement import Measurement, MethodSpec, labelled_methods
from rag_middle.evaluation.tasks import Task, make_task
from rag_middle.evaluation.tasks.base import require_whole
from rag_middle.evaluation.tasks.making import PATH_OPTIONS
from rag_middle.plain_data import parse_json
from rag_middle.registry import suggest

__all__ = ["EvaluationConfig", "ModelConfig", "Published", "TaskConfig", "read_config"]


@dataclass(frozen=True, slots=True, kw_only=True)
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
    methods: tuple[MethodSpec, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskConfig:
    """A task to evaluate on.

    Attributes:
        task: its registered name.
        label: tells it from the same task with other options.
        options: of the task; relative paths lie beside the configuration.
        measurement: fields of `Measurement` for this task only.
    """

    task: str
    label: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    measurement: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The label, or the name of the task where it has none."""
        return self.label or self.task


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
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
    methods: tuple[MethodSpec, ...] = ()
    measurement: Mapping[str, Any] = field(default_factory=dict)
    cost: bool = False
    source: str = ""
    published: tuple[Published, ...] = ()

    def measurement_of(self, task: TaskConfig) -> Measurement:
        """How a task is measured.

        Raises:
            EvaluationConfigError: fields that a measurement does not have, or refuses.
        """
        given = {**self.measurement, **task.measurement}
        known = [each.name for each in fields(Measurement)]
        for name in given:
            if name not in known:
                raise EvaluationConfigError(
                    f"A measurement has no {name!r}.{suggest(name, known)} It has "
                    f"{', '.join(known)}."
                )
        if isinstance(given.get("positions"), list):
            given["positions"] = tuple(given["positions"])
        return Measurement(**given)

    def task_of(self, task: TaskConfig, folder: str | Path) -> Task:
        """The task, its relative paths taken from `folder`."""
        options = {
            name: Path(folder) / value if name in PATH_OPTIONS and value else value
            for name, value in task.options.items()
        }
        return make_task(task.task, options)

    def limited(self, limit: int | None) -> EvaluationConfig:
        """The same with at most so many questions for every task; None changes nothing."""
        if limit is None:
            return self
        tasks = tuple(
            replace(each, measurement={**each.measurement, "limit": limit}) for each in self.tasks
        )
        return replace(self, tasks=tasks)

    def check(self) -> None:
        """Refuse what cannot be run, before any model is loaded.

        Raises:
            EvaluationConfigError, UnknownNameError, MethodConfigError: what is wrong.
        """
        for kind, names in (
            ("models", [each.name for each in self.models]),
            ("tasks", [each.name for each in self.tasks]),
        ):
            if not names:
                raise EvaluationConfigError(f"{self.title or 'The configuration'} has no {kind}.")
            double = {name for name in names if names.count(name) > 1}
            if double:
                raise EvaluationConfigError(
                    f"Two {kind} are called {sorted(double)[0]!r}: give them different labels."
                )
        for model in self.models:
            if model.context_window is not None:
                require_whole("a model", 1, most=2**40, context_window=model.context_window)
            labelled_methods([*self.methods, *model.methods])
        for task in self.tasks:
            self.measurement_of(task)


def read_config(path: str | Path) -> EvaluationConfig:
    """Read and check a configuration.

    Args:
        path: a ``.json``, ``.yaml`` or ``.yml`` file.

    Raises:
        EvaluationConfigError: it cannot be read, or says something that there is not.
        MissingExtraError: YAML without pyyaml.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise EvaluationConfigError(
            f"The configuration {str(path)!r} cannot be read ({error}). Pass a YAML or JSON file."
        ) from error
    content = _parsed(path, text)
    named = f"The configuration {path.name!r}"
    known = _known(content, EvaluationConfig, named)
    _check_kinds(known, named)
    known["title"] = str(content.get("title", path.stem))
    known["models"] = _several(content.get("models"), ModelConfig, f"a model of {path.name}")
    known["tasks"] = _several(content.get("tasks"), TaskConfig, f"a task of {path.name}")
    known["methods"] = _list(content.get("methods"), f"methods of {path.name}")
    published = content.get("published") or {}
    if not isinstance(published, Mapping) or set(published) - {"source", "scores"}:
        raise EvaluationConfigError(
            f"{named}: published should be an object with 'source' and 'scores', got {published!r}."
        )
    known["source"] = str(published.get("source", ""))
    known["published"] = _several(published.get("scores"), Published, "a published score")
    config = EvaluationConfig(**known)
    config.check()
    return config


def _parsed(path: Path, text: str) -> Mapping[str, Any]:
    try:
        content = parse_json(text) if path.suffix == ".json" else _yaml(text)
    except ValueError as error:
        raise EvaluationConfigError(
            f"The configuration {str(path)!r} is not valid {path.suffix[1:].upper()}: {error}."
        ) from error
    if not isinstance(content, Mapping):
        raise EvaluationConfigError(
            f"The configuration {str(path)!r} should be an object with models, tasks and methods, "
            f"got {type(content).__name__}."
        )
    return content


def _yaml(text: str) -> Any:
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise MissingExtraError("A YAML file", package="pyyaml", extra="eval") from error
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(str(error)) from error


def _known(content: Any, kind: type, named: str) -> dict[str, Any]:
    """The fields of an object, if it has only those it may have."""
    if not isinstance(content, Mapping):
        raise EvaluationConfigError(f"{named} should be an object, got {content!r}.")
    names = [each.name for each in fields(kind)]
    for name in content:
        if name not in names:
            raise EvaluationConfigError(
                f"{named} has no field {name!r}.{suggest(str(name), names)} Fields: "
                f"{', '.join(names)}."
            )
    return dict(content)


#: What fields of a configuration hold, in words and types; the others check themselves.
_KINDS: dict[str, tuple[str, Any]] = {
    **dict.fromkeys(
        ("name", "task", "label", "dtype", "revision", "attn_implementation", "model", "method"),
        ("a text", str),
    ),
    **dict.fromkeys(("options", "measurement"), ("an object", Mapping)),
    "mean": ("a number", int | float),
    "cost": ("true or false", bool),
}


def _check_kinds(known: dict[str, Any], named: str) -> None:
    for name in [name for name, value in known.items() if value is None]:
        del known[name]  # as if it were not there
    for name, value in known.items():
        words, kind = _KINDS.get(name, ("", object))
        if not isinstance(value, kind):
            raise EvaluationConfigError(
                f"{named[0].upper()}{named[1:]} says {name}: {value!r}, which should be {words}."
            )


def _several(given: Any, kind: type, named: str) -> tuple[Any, ...]:
    made = []
    for each in _list(given, named):
        known = _known({"name": each} if isinstance(each, str) else each, kind, named)
        if "methods" in known:
            known["methods"] = _list(known["methods"], named)
        _check_kinds(known, named)
        try:
            made.append(kind(**known))
        except TypeError as error:  # says which fields are missing
            raise EvaluationConfigError(
                f"{named[0].upper()}{named[1:]} is incomplete ({error}): {each!r}."
            ) from error
    return tuple(made)


def _list(given: Any, named: str) -> tuple[Any, ...]:
    if given is None:
        return ()
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise EvaluationConfigError(f"{named}: a list is expected, got {given!r}.")
    return tuple(given)
