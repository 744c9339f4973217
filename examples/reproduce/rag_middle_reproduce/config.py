"""A whole evaluation in a file: models x tasks x methods, YAML.

::

    title: Multi-document question answering
    models:
      - name: lmsys/vicuna-7b-v1.5
        dtype: float16
        methods: ["profile:lpes-vicuna-7b-v1.5.json"]         # for this model only
        task_options: {max_prompt_tokens: 15500}              # of the tasks that have it
    tasks:
      - task: multi_document_qa
        label: NQ, 10 documents
        options: {data: nq-open-10_total_documents_gold_at_0.jsonl.gz, ranks: true}
        measurement: {positions: [0, 4, 9]}                   # for this task only
    methods: [ms_poe, {name: position_interpolation, options: {scale: 1.5}, label: PI 1.5}]
    measurement: {limit: 500}
    source: arXiv:2606.27705, theirs
    published:
      - {model: lmsys/vicuna-7b-v1.5, task: "NQ, 10 documents", method: ms_poe, mean: 63.5}

Data files and profiles are in the data folder; ``mean:lpes-vicuna-7b-v1.5.json`` is position
interpolation at the mean of a profile's factors. What several files share stands in one of its own,
whose name begins with an underscore or which is an evaluation itself; ``base: _models.yaml``, or a
list of files, takes its fields, and those of the file itself replace them.

A file with ``attention: {show: layers, layers: [10, 20]}`` asks nothing: it is for
``python -m rag_middle_reproduce.attention``, which draws.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, get_args

import yaml

from rag_middle import ConfigError, FileFormatError
from rag_middle.evaluation import (
    TASKS,
    LabelledMethod,
    Measurement,
    Task,
    check_measurement,
    labelled_methods,
    make_task,
)
from rag_middle.methods import LPES, Compose, Method, PositionalHiddenStates, resolve_method
from rag_middle.methods.resolve import method_from_file
from rag_middle_reproduce import tasks as _tasks  # noqa: F401 - registers them

__all__ = [
    "AttentionConfig",
    "EvaluationConfig",
    "ModelConfig",
    "Published",
    "TaskConfig",
    "read_config",
]

AttentionRows = Literal["layers", "heads", "gold"]

_PROFILE, _MEAN = "profile:", "mean:"
_PREPARE = "examples/reproduce/prepare.py"
_TRIAL_WINDOW = 32_768  # tokens: enough for every prompt


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A model to evaluate.

    Attributes:
        name: directory or hub name.
        dtype: of the weights.
        revision: on the hub.
        attn_implementation: of the model.
        device_map: ``auto`` to spread a large model over all devices.
        quantization_config: ``4bit`` or ``8bit``.
        context_window: tokens, instead of what the model's config says.
        methods: for this model besides those for all.
        task_options: of those tasks that have them, in place of the tasks' own.
    """

    name: str
    dtype: str = "auto"
    revision: str | None = None
    attn_implementation: str | None = None
    device_map: str | None = None
    quantization_config: str | None = None
    context_window: int | None = None
    methods: tuple[Any, ...] = ()
    task_options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """A task to evaluate on.

    Attributes:
        task: its registered name.
        label: tells it from the same task with other options; by default its name.
        options: of the task; relative paths are in the data folder.
        measurement: fields of `Measurement` for this task only.
        also: scores that get tables of their own, from the same answers.
    """

    task: str
    label: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    measurement: Mapping[str, Any] = field(default_factory=dict)
    also: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", self.label or self.task)
        object.__setattr__(self, "also", tuple(self.also))

    def make(self, data: Path, model: ModelConfig) -> Task:
        """The task as it is put to a model, with its files in the folder `data`.

        Raises:
            FileFormatError: a file is not there.
        """
        parameters = fields(TASKS.get(self.task))
        names = {parameter.name for parameter in parameters}
        options = {
            **self.options,
            **{name: value for name, value in model.task_options.items() if name in names},
        }
        for parameter in parameters:
            if "Path" in str(parameter.type) and options.get(parameter.name):
                options[parameter.name] = path = data / options[parameter.name]
                if not path.exists():
                    raise FileFormatError(
                        f"There is no data file {str(path)!r}. Fetch the datasets with "
                        f"`python {_PREPARE} --data FOLDER` and name that folder with --data, or "
                        "see with --try-out that all goes together, without data."
                    )
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
class AttentionConfig:
    """What a picture of attention shows.

    Attributes:
        show: a row for every layer (``"layers"``), head (``"heads"``) or position of the gold
            document (``"gold"``); a column for every document.
        layers: which ones; None for all. Where they are no rows they are averaged, heads likewise.
        heads: which ones; None for all.

    Raises:
        ConfigError: no such rows.
    """

    show: AttentionRows = "layers"
    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        shown = get_args(AttentionRows)
        if self.show not in shown:
            raise ConfigError(
                f"attention: show must be one of {', '.join(shown)}, got {self.show!r}."
            )


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """What to evaluate.

    Attributes:
        title: of the tables.
        models: each is loaded once.
        tasks: each is run on every model.
        methods: under which, besides the unmodified model.
        measurement: fields of `Measurement` for all tasks.
        cost: measure times too.
        source: of the published numbers.
        published: numbers to show beside.
        attention: what pictures show; None where questions are asked.
    """

    title: str
    models: tuple[ModelConfig, ...]
    tasks: tuple[TaskConfig, ...]
    methods: tuple[Any, ...] = ()
    measurement: Mapping[str, Any] = field(default_factory=dict)
    cost: bool = False
    source: str = ""
    published: tuple[Published, ...] = ()
    attention: AttentionConfig | None = None

    def measurement_of(self, task: TaskConfig, metric: str | None = None) -> Measurement:
        """How a task is measured, by `metric` where one is named."""
        values = {**self.measurement, **task.measurement}
        if metric is not None:
            values["metric"] = metric
        names = [field.name for field in fields(Measurement)]
        for name in values:
            if name not in names:
                raise ConfigError(f"A measurement has no {name!r}. It has {', '.join(names)}.")
        return Measurement(**values)

    def methods_of(self, model: ModelConfig, data: Path) -> tuple[LabelledMethod, ...]:
        """What is compared on a model, the unmodified model first.

        Raises:
            ConfigError: a profile that is not in the folder `data`, or LPES without
                fitted factors.
            UnknownNameError, MethodConfigError: as `rag_middle.evaluation.labelled_methods`.
        """
        specs = [_with_profile(spec, data, model) for spec in (*self.methods, *model.methods)]
        methods = labelled_methods(specs)
        for method in methods:
            for part in method.method.parts:
                if isinstance(part, LPES) and not isinstance(part.factors, tuple):
                    raise ConfigError(
                        f"{method.label}: one factor in every layer is position interpolation, not "
                        "LPES, whose factors are fitted to the model. Fit them with `rag-middle "
                        f"calibrate --method lpes:paper --model {model.name}`, or name "
                        "position_interpolation."
                    )
        return methods

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
                raise ConfigError(
                    f"The configuration has no model {name!r}. It has {', '.join(models)}."
                )
        return replace(self, models=tuple(models[name] for name in names))

    def tried_out(self) -> EvaluationConfig:
        """The same on the default model, one question each and a few new tokens.

        It shows that data, prompts, methods and scores go together; its numbers mean nothing. In
        place of parameters that were fitted to the papers' models stand some that fit any model.
        """
        model = self.models[0]
        specs = [LabelledMethod(*_for_trial(spec)) for spec in (*self.methods, *model.methods)]
        trial = replace(
            ModelConfig(name="small", context_window=_TRIAL_WINDOW),
            task_options=model.task_options,
        )
        tasks = []
        for task in self.tasks:
            measurement = {**self.measurement, **task.measurement, "limit": 1, "max_new_tokens": 2}
            if isinstance(positions := measurement.get("positions"), list):
                measurement["positions"] = positions[:2]
            options = dict(task.options)
            if task.task == "key_value_retrieval" and "data" not in options:
                options["identifier_characters"] = 6  # short prompts
            tasks.append(replace(task, measurement=measurement, options=options))
        attention = self.attention
        if attention is not None:  # it has four layers and heads
            attention = replace(attention, layers=(1, 2), heads=(0, 3))
        return replace(
            self,
            models=(trial,),
            tasks=tuple(tasks),
            methods=tuple(specs),
            published=(),
            attention=attention,
        )

    def check(self, data: Path) -> None:
        """Refuse what cannot be run, before any model is loaded.

        Raises:
            ConfigError, FileFormatError, UnknownNameError, MethodConfigError: why.
        """
        for kind, names in (
            ("models", [model.name for model in self.models]),
            ("tasks", [task.label for task in self.tasks]),
        ):
            if not names or len(set(names)) < len(names):
                raise ConfigError(
                    f"{self.title} should have at least one of its {kind}, under different names; "
                    f"got {names}."
                )
        for model in self.models:
            methods = self.methods_of(model, data)
            for task in self.tasks:
                for metric in (None, *task.also):
                    measurement = self.measurement_of(task, metric)
                    check_measurement(task.make(data, model), methods, measurement)


def read_config(path: str | Path) -> EvaluationConfig:
    """Read a configuration.

    Raises:
        ConfigError: it cannot be read, or has fields that there are not.
    """
    path = Path(path)
    content = _with_bases(path)
    config: EvaluationConfig = _parsed(EvaluationConfig, content, path.name)
    attention = config.attention
    return replace(
        config,
        models=tuple(_parsed(ModelConfig, model, path.name) for model in config.models),
        tasks=tuple(_parsed(TaskConfig, task, path.name) for task in config.tasks),
        methods=tuple(config.methods),
        published=tuple(_parsed(Published, score, path.name) for score in config.published),
        attention=attention and _parsed(AttentionConfig, attention, path.name),
    )


def _with_bases(path: Path, below: tuple[Path, ...] = ()) -> Any:
    """The content of a file over that of its bases, the later ones over the earlier."""
    if path in below:
        raise ConfigError(f"{path.name} is its own base. Take 'base' out of one file.")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        needed = f", which {below[-1].name} names as its base" if below else ""
        raise ConfigError(
            f"The configuration {str(path)!r}{needed} cannot be read ({error}). Pass a YAML file."
        ) from error
    if not isinstance(content, dict) or "base" not in content:
        return content
    bases = content.pop("base")
    merged: dict[str, Any] = {}
    for name in [bases] if isinstance(bases, str) else bases:
        merged |= _with_bases(path.parent / name, (*below, path))
    return merged | content


def _with_profile(spec: Any, data: Path, model: ModelConfig) -> Any:
    """A method as it is named; a profile with its path in the data folder.

    ``mean:FILE`` is position interpolation at the mean of the profile's factors.
    """
    if not isinstance(spec, str) or not spec.startswith((_PROFILE, _MEAN)):
        return spec
    path = data / spec.partition(":")[2]
    if not path.is_file():
        raise ConfigError(
            f"There is no profile {str(path)!r}: its parameters are fitted to {model.name}, and "
            "not published with the paper. Fit them with `rag-middle calibrate --method lpes:paper "
            f"--model {model.name}`, with the -s options that the configuration names for it if "
            "any, and copy the profile that it writes there."
        )
    method = method_from_file(path)
    if spec.startswith(_MEAN):
        factors = getattr(method, "factors", None)
        if not isinstance(factors, tuple):
            raise ConfigError(
                f"{spec}: {path.name} has no factors by layer. Name a profile of LPES."
            )
        method = resolve_method("position_interpolation", {"scale": fmean(factors)})
    return LabelledMethod(spec, method)


def _for_trial(spec: Any) -> tuple[str, Method]:
    """Label and method, with parameters that fit the default model."""
    if isinstance(spec, Mapping):
        if spec.get("name") == "positional_hidden_states":
            options = {**spec.get("options", {}), "channels": (3,), "layers": (1, 2)}
            spec = {**spec, "options": options}
        elif "layers" in spec.get("options", {}):
            spec = {**spec, "options": {**spec["options"], "layers": (1, 2)}}
        [_, labelled] = labelled_methods([spec])
        return labelled.label, labelled.method
    if isinstance(spec, str) and spec.startswith((_PROFILE, _MEAN)):
        return spec, resolve_method("position_interpolation", {"scale": 1.1})
    parts = [
        PositionalHiddenStates(channels=(3,), factor=0.5, layers=(1, 2))
        if part.startswith("positional_hidden_states:")
        else resolve_method(part)
        for part in str(spec).split("+")
    ]
    return str(spec), parts[0] if len(parts) == 1 else Compose(methods=tuple(parts))


def _parsed(kind: type, content: Any, name: str) -> Any:
    try:
        return kind(**content)
    except TypeError as error:  # no mapping, a field too many or one missing
        names = ", ".join(field.name for field in fields(kind))
        raise ConfigError(
            f"{name}: a {kind.__name__} has the fields {names}; got {content!r} ({error})."
        ) from error
