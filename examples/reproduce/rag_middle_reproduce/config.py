"""A whole evaluation in a file: models x tasks x methods, YAML.

::

    title: "Ms-PoE, table 2: documents and pairs"              # paper, table or figure, what it is
    differs: pairs are drawn                                   # from the paper
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
    averages: {all tasks: ["NQ, 10 documents"]}               # tasks, or earlier averages
    source: arXiv:2606.27705, theirs
    published:                                                # a mean, or a value per position
      lmsys/vicuna-7b-v1.5: {"NQ, 10 documents": {none: [64.0, 57.4, 64.8], ms_poe: 63.5}}

Data files and profiles are in the data folder; ``data: shipped`` is this package's questions.
``mean:lpes-vicuna-7b-v1.5.json`` is position interpolation at the mean of a profile's factors, and
``{fit: ...}`` a method that is found in the loaded model (`rag_middle_reproduce.fitted`). What
several files share stands in one of its own, whose name begins with an underscore or which is an
evaluation itself; ``base: _models.yaml``, or a list of files, takes its fields, and those of the
file itself replace them.

A file with one of the fields of `VIEWS` asks nothing: ``attention: {show: layers}`` draws what the
last token gives to documents, ``hidden_states: {}`` channels along positions, and ``flow: {}``,
``initial_token: {}`` and ``search_times: {}`` make tables.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from rag_middle import ConfigError, FileFormatError, RagMiddleModel
from rag_middle.evaluation import (
    TASKS,
    LabelledMethod,
    Measurement,
    Task,
    check_measurement,
    labelled_methods,
    make_task,
)
from rag_middle.files import reason
from rag_middle.methods import LPES, Compose, Method, PositionalHiddenStates, resolve_method
from rag_middle.methods.resolve import method_from_file
from rag_middle.passages import passages_path
from rag_middle_reproduce import tasks as _tasks  # noqa: F401 - registers them
from rag_middle_reproduce.attention import AttentionView
from rag_middle_reproduce.fitted import FITS, ChannelFit, Fit
from rag_middle_reproduce.flow import FlowView, InitialTokenView
from rag_middle_reproduce.perturbations import PERTURBATIONS
from rag_middle_reproduce.search_times import SearchTimesView
from rag_middle_reproduce.states import HiddenStatesView
from rag_middle_reproduce.views import Asked, View

#: What a file may show where it asks no questions.
VIEWS: Mapping[str, type[View]] = {
    "attention": AttentionView,
    "hidden_states": HiddenStatesView,
    "flow": FlowView,
    "initial_token": InitialTokenView,
    "search_times": SearchTimesView,
}

#: In place of a data file: this package's questions.
SHIPPED = "shipped"
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
                name = options[parameter.name]
                options[parameter.name] = path = passages_path() if name == SHIPPED else data / name
                if not path.exists():
                    raise FileFormatError(
                        f"There is no data file {str(path)!r}. Fetch the datasets with "
                        f"`python {_PREPARE} --data FOLDER` and name that folder with --data, or "
                        "see with --try-out that all goes together, without data."
                    )
        return make_task(self.task, options)


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """What to evaluate.

    Attributes:
        title: of the tables: paper, table or figure, and what it is.
        models: each is loaded once.
        tasks: each is run on every model; none where a view reads texts of its own.
        methods: under which, besides the unmodified model.
        measurement: fields of `Measurement` for all tasks.
        cost: measure times too.
        averages: means over tasks, or over averages before them, by their label.
        differs: what departs from the paper.
        source: of the published numbers.
        published: numbers to show beside, in per cent, by model, task or average, and label of the
            method or name of one that is not run here; a list has one for each position.
        view: what is shown; None where questions are asked.
    """

    title: str
    models: tuple[ModelConfig, ...]
    tasks: tuple[TaskConfig, ...] = ()
    methods: tuple[Any, ...] = ()
    measurement: Mapping[str, Any] = field(default_factory=dict)
    cost: bool = False
    averages: Mapping[str, Sequence[str]] = field(default_factory=dict)
    differs: str = ""
    source: str = ""
    published: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    view: View | None = None

    def measurement_of(self, task: TaskConfig, metric: str | None = None) -> Measurement:
        """How a task is measured, by `metric` where one is named."""
        values = {**self.measurement, **task.measurement, **({"metric": metric} if metric else {})}
        measurement: Measurement = _parsed(Measurement, values, self.title)
        return measurement

    def methods_of(
        self, model: ModelConfig, data: Path, loaded: RagMiddleModel | None = None
    ) -> tuple[LabelledMethod, ...]:
        """What is compared on a model, the unmodified model first.

        Args:
            model: its entry.
            data: folder of profiles.
            loaded: the model itself; without it, methods that are found in it are left out.

        Raises:
            ConfigError: a profile that is not in the folder `data`, LPES without fitted factors, or
                nothing found in the model.
            UnknownNameError, MethodConfigError: as `rag_middle.evaluation.labelled_methods`.
        """
        specs: list[Any] = []
        for spec in (*self.methods, *model.methods):
            if not isinstance(spec, Fit):
                specs.append(_with_profile(spec, data, model))
            elif loaded is not None:
                found = spec.method(loaded, self.tasks[0].make(data, model))
                specs.append(LabelledMethod(spec.label, found))
        methods = labelled_methods(specs)
        for part in (part for method in methods for part in method.method.parts):
            if isinstance(part, LPES) and not isinstance(part.factors, tuple):
                raise ConfigError(
                    "One factor in every layer is position interpolation, not LPES, whose factors "
                    "are fitted to the model. Fit them with `rag-middle calibrate --method "
                    f"lpes:paper --model {model.name}`, or name position_interpolation."
                )
        return methods

    def asked(self, data: Path, model: ModelConfig) -> list[Asked]:
        """The tasks as they are put to a model."""
        return [Asked(t.label, t.make(data, model), self.measurement_of(t)) for t in self.tasks]

    def measured(self, **values: Any) -> EvaluationConfig:
        """The same with these fields of the measurement of every task; None changes nothing."""
        given = {name: value for name, value in values.items() if value is not None}
        tasks = (replace(task, measurement={**task.measurement, **given}) for task in self.tasks)
        return replace(self, tasks=tuple(tasks))

    def on_models(self, names: Sequence[str]) -> EvaluationConfig:
        """The same on these models; on none of its own the same experiment on another model.

        On another model run the methods that are not fitted to one: no profiles, presets, channels
        and layers. No numbers are published for it.
        """
        own = {model.name: model for model in self.models}
        if not names:
            return self
        if all(name in own for name in names):
            return replace(self, models=tuple(own[name] for name in names))
        first = self.models[0]
        specs = [spec for spec in (*self.methods, *first.methods) if _fits_any_model(spec)]
        return replace(
            self,
            title=f"{self.title} (same experiment, other model)",
            models=tuple(own.get(n, ModelConfig(name=n)) for n in names),
            methods=tuple(specs),
            published={},
        )

    def on_shipped_questions(self) -> EvaluationConfig:
        """The same with this package's questions, and drawn pairs, in place of those of a file.

        Raises:
            ConfigError: a task that has no such questions.
        """
        return replace(self, tasks=tuple(_shipped(task) for task in self.tasks))

    def tried_out(self) -> EvaluationConfig:
        """The same on the default model, one question each and a few new tokens.

        It shows that data, prompts, methods and scores go together; its numbers mean nothing. In
        place of parameters that were fitted to the papers' models stand some that fit any model.
        """
        model = self.models[0]
        specs = [_for_trial(spec) for spec in (*self.methods, *model.methods)]
        trial = replace(
            ModelConfig(name="small", context_window=_TRIAL_WINDOW),
            task_options=model.task_options,
        )
        tasks = []
        for task in self.tasks:
            measurement = {**self.measurement, **task.measurement, "limit": 1, "max_new_tokens": 2}
            options, positions = dict(task.options), measurement.get("positions", 5)
            measurement["positions"] = positions[:2] if isinstance(positions, list) else 2
            if task.task in ("key_value_retrieval", "json_pairs") and "data" not in options:
                options["identifier_characters"] = 6  # short prompts
                if not isinstance(positions, list):
                    options["keys"] = 4
            tasks.append(replace(task, measurement=measurement, options=options))
        return replace(
            self,
            models=(trial,),
            tasks=tuple(tasks),
            methods=tuple(specs),
            published={},
            view=self.view and self.view.tried_out(),
        )

    def check(self, data: Path) -> None:
        """Refuse what cannot be run, before any model is loaded.

        Raises:
            ConfigError, FileFormatError, UnknownNameError, MethodConfigError: why.
        """
        labels = [task.label for task in self.tasks]
        for kind, names in (("models", [model.name for model in self.models]), ("tasks", labels)):
            if len(set(names)) < len(names) or not (names or self.view):
                raise ConfigError(
                    f"{self.title} should have at least one of its {kind}, under different names; "
                    f"got {names}."
                )
        for average, parts in self.averages.items():
            if unknown := [part for part in parts if part not in (*labels, *self.averages)]:
                raise ConfigError(f"{average!r} is a mean over {unknown}, which are no tasks.")
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
    for name in [view for view in VIEWS if view in content]:
        content["view"] = _parsed(VIEWS[name], content.pop(name), path.name)
    config: EvaluationConfig = _parsed(EvaluationConfig, content, path.name)
    models = [_parsed(ModelConfig, model, path.name) for model in config.models]
    return replace(
        config,
        models=tuple(replace(m, methods=tuple(map(_spec, m.methods))) for m in models),
        tasks=tuple(_parsed(TaskConfig, task, path.name) for task in config.tasks),
        methods=tuple(map(_spec, config.methods)),
    )


def _with_bases(path: Path) -> dict[str, Any]:
    """The content of a file over that of its bases, the later ones over the earlier."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise TypeError("it holds no fields")
    except (OSError, TypeError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(
            f"The configuration {str(path)!r} cannot be read ({reason(error)}). Pass the "
            "path of a YAML file."
        ) from error
    bases = content.pop("base", [])
    merged: dict[str, Any] = {}
    for name in [bases] if isinstance(bases, str) else bases:
        merged |= _with_bases(path.parent / name)
    if any(view in content for view in VIEWS):
        merged = {name: value for name, value in merged.items() if name not in VIEWS}
    return merged | content


def _spec(spec: Any) -> Any:
    """A method that this package alone has, or what finds one; other entries as they are."""
    if not isinstance(spec, Mapping):
        return spec
    if "fit" in spec:
        if spec["fit"] not in FITS:
            raise ConfigError(f"fit must be one of {', '.join(FITS)}, got {spec['fit']!r}.")
        values = {name: value for name, value in spec.items() if name != "fit"}
        return _parsed(FITS[spec["fit"]], values, "methods")
    perturbation = PERTURBATIONS.get(spec.get("name", ""))
    if perturbation is None:
        return spec
    return LabelledMethod(spec.get("label", spec["name"]), perturbation(**spec.get("options", {})))


def _fits_any_model(spec: Any) -> bool:
    """Whether a method names nothing that is fitted to one model."""
    if isinstance(spec, Mapping):
        return not {"channels", "layers"} & set(spec.get("options", {}))
    return not isinstance(spec, ChannelFit) and (not isinstance(spec, str) or ":" not in spec)


def _shipped(task: TaskConfig) -> TaskConfig:
    """The task with questions that need no file of the papers'."""
    if task.options.get("data", SHIPPED) == SHIPPED:
        return task
    count = re.search(r"(\d+)_(?:total|keys)", str(task.options["data"]))
    label = f"{task.label}, shipped questions"
    if count and task.task in ("key_value_retrieval", "json_pairs"):
        return replace(task, label=label, options={"keys": int(count[1])})
    if count and task.task in ("multi_document_qa", "sentence_qa"):
        options = {**task.options, "data": SHIPPED, "documents": int(count[1])}
        return replace(task, label=label, options=options)
    raise ConfigError(f"{task.label} needs its data: fetch it with `python {_PREPARE}`.")


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


def _for_trial(spec: Any) -> LabelledMethod | Fit:
    """Label and method, with parameters that fit the default model."""
    if isinstance(spec, Fit):
        return spec.tried_out()
    if isinstance(spec, str) and spec.startswith((_PROFILE, _MEAN)):
        return LabelledMethod(spec, resolve_method("position_interpolation", {"scale": 1.1}))
    [_, labelled] = labelled_methods([spec])
    parts = tuple(_small(part) for part in labelled.method.parts)
    return replace(labelled, method=parts[0] if len(parts) == 1 else Compose(methods=parts))


def _small(method: Any) -> Method:
    """The method in layers, channels and documents that any prompt and model has."""
    values: dict[str, Any] = {"layers": (1, 2)} if getattr(method, "layers", None) else {}
    if isinstance(method, PositionalHiddenStates):
        values = {"layers": (1, 2), "channels": (3,)}
    if getattr(method, "document", None) is not None:
        values = {"document": 1}
    small: Method = replace(method, **values)
    return small


def _parsed(kind: type, content: Any, name: str) -> Any:
    try:
        return kind(**content)
    except TypeError as error:  # no mapping, a field too many or one missing
        names = ", ".join(field.name for field in fields(kind))
        raise ConfigError(
            f"{name}: a {kind.__name__} has the fields {names}; got {content!r} ({error})."
        ) from error
