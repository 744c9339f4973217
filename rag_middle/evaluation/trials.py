"""Ask every question under every condition and method, once."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

import rag_middle
from rag_middle.documents import ContextPrompt
from rag_middle.errors import EvaluationConfigError, EvaluationDataError
from rag_middle.evaluation.conditions import Condition, Item
from rag_middle.evaluation.lengths import CheckedPrompt, check_lengths
from rag_middle.evaluation.measurement import (
    BASELINE,
    LabelledMethod,
    Measurement,
    MethodSpec,
    labelled_methods,
)
from rag_middle.evaluation.records import Key, Record, Records, open_records
from rag_middle.evaluation.results import Results
from rag_middle.evaluation.tasks import Task
from rag_middle.generation import MethodLike, RagMiddleModel, model_facts
from rag_middle.tokens import uses_chat_template

__all__ = [
    "EstimateCallback",
    "ProgressCallback",
    "check_measurement",
    "check_takes",
    "model_identity",
    "run",
    "software",
]

#: Called with the number of answers so far and the number of all.
ProgressCallback = Callable[[int, int], None]

#: Called with the seconds that the answers still missing will take, and their number.
EstimateCallback = Callable[[float, int], None]

_BATCHES_PER_WRITE = 4


def run(
    model: RagMiddleModel,
    task: Task,
    methods: Sequence[MethodSpec] = (BASELINE,),
    measurement: Measurement | None = None,
    *,
    records: str | Path | None = None,
    progress: ProgressCallback | None = None,
    estimated: EstimateCallback | None = None,
) -> Results:
    """Measure methods on a task.

    Answers already in `records` are not asked for again, so a run that was killed continues where
    it stopped, and one with more questions, positions or methods adds to an earlier one.

    Args:
        model: its own method is not used.
        task: the questions.
        methods: what to compare; the unmodified model always comes first.
        measurement: how; by default 100 questions, the gold document at five positions, generated
            answers.
        records: a file to keep answers in, and to continue from.
        progress: called after every few batches.
        estimated: called once, after a first batch under each method has been timed. The longest
            prompts are asked first, so the rest takes rather less.

    Raises:
        EvaluationConfigError: positions that the task does not have, or a task that cannot be
            scored in this way, or whose prompts do not fit the model; all are checked before the
            first is asked.
        EvaluationDataError: the task's data cannot be read, or holds no question.
        EvaluationRecordsError: `records` is damaged, belongs to another measurement, or is in use.
        UnsupportedArchitectureError, MethodConfigError: a method that the model cannot take; before
            anything is asked.

    Example:
        >>> results = run(model, task, ["pine"], Measurement(limit=50))
        >>> plot_position_curves(results.curves()).savefig("curves.png")
    """
    measurement = measurement or Measurement()
    labelled = check_measurement(task, methods, measurement)
    for entry in labelled:
        check_takes(model, entry.method)
    items = task.items(measurement.limit, measurement.seed)
    if not items:
        raise EvaluationDataError(f"{task.name} has no questions. Check its data and limit.")
    controls = task.controls if measurement.controls else ()
    trials = [
        _Trial(item, condition, entry, task.prompt(item, condition))
        for entry in labelled
        for condition in (
            *measurement.conditions(task),
            *(controls if entry.label == BASELINE else ()),
        )
        for item in items
    ]
    identity = {
        "task": task.to_dict(),
        "measurement": measurement.identity(),
        "model": model_identity(model),
    }
    kept = open_records(
        records,
        identity,
        metrics=measurement.metric_names(task),
        generated=measurement.scoring == "generation",
    )
    with kept as answers:
        for entry in labelled:
            answers.declare(entry.label, repr(entry.method))
        missing = [trial for trial in trials if trial.key not in answers]
        _check_lengths(model, task, measurement, missing)
        asked = len(trials) - len(missing)
        _ask(model, task, measurement, missing, answers, asked, progress, estimated)
        return Results(
            task=task,
            measurement=measurement,
            methods=labelled,
            items=tuple(items),
            records={trial.key: answers[trial.key] for trial in trials},
            model=identity["model"],
            software=software(model),
        )


def check_measurement(
    task: Task, methods: Sequence[MethodSpec], measurement: Measurement
) -> tuple[LabelledMethod, ...]:
    """The methods with their labels, once what needs no model to be refused is refused.

    Raises:
        EvaluationConfigError, UnknownNameError, MethodConfigError: as `run`.
    """
    labelled = labelled_methods(methods)
    if measurement.scoring == "likelihood" and not task.by_likelihood:
        raise EvaluationConfigError(
            f"{task.name} has no single right answer whose log-likelihood could be measured: use "
            "scoring='generation'."
        )
    measurement.metric_names(task)
    measurement.gold_positions(task)
    return labelled


def check_takes(model: RagMiddleModel, method: MethodLike) -> None:
    """Refuse a method that the model cannot take, before an hour is spent.

    Raises:
        UnsupportedArchitectureError, MethodConfigError: why it cannot take it.
    """
    # A model of its own: `model` may leave the check of the method's effect out.
    RagMiddleModel(model.model, model.tokenizer, method=method)


def model_identity(model: RagMiddleModel) -> dict[str, Any]:
    """What tells this model from others: name, revision, number format, a digest of its weights.

    A model from a folder goes by the folder's name, without its path. The digest takes a few
    values of every parameter, so that another training of a model under the same name is noticed;
    it is no checksum of the whole.
    """
    facts = model_facts(model.model, model.tokenizer, all_weights=False)
    return {
        "name": facts.id,
        "revision": facts.revision,
        "type": facts.model_type,
        "dtype": str(model.model.dtype).removeprefix("torch."),
        "weights": (facts.weights_sample or model.fingerprint())[:16],
    }


def software(model: RagMiddleModel) -> dict[str, str]:
    """Versions, and the device."""
    versions = {"rag-middle": rag_middle.__version__, "python": platform.python_version()}
    for package in ("torch", "transformers", "numpy"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    device = model.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {**versions, "device": f"{device.type} ({name})"}


@dataclass(frozen=True, slots=True)
class _Trial:
    """One prompt to ask."""

    item: Item
    condition: Condition
    method: LabelledMethod
    prompt: ContextPrompt

    @property
    def key(self) -> Key:
        return self.method.label, self.condition.name, self.item.id

    def record(self, **fields: Any) -> Record:
        method, condition, item = self.key
        return Record(method=method, condition=condition, item=item, **fields)


def _check_lengths(
    model: RagMiddleModel, task: Task, measurement: Measurement, trials: Sequence[_Trial]
) -> None:
    room = measurement.max_new_tokens or task.max_new_tokens

    def new_tokens(trial: _Trial) -> int:
        if measurement.scoring == "generation":
            return room
        return len(model.token_ids(_target(model, task, measurement, trial)))

    prompts = [CheckedPrompt(trial.item.id, trial.prompt, new_tokens(trial)) for trial in trials]
    check_lengths(
        model,
        prompts,
        template=measurement.template,
        parameter="documents" if hasattr(task, "documents") else "keys",
    )


def _ask(
    model: RagMiddleModel,
    task: Task,
    measurement: Measurement,
    missing: Sequence[_Trial],
    answers: Records,
    done: int,
    progress: ProgressCallback | None,
    estimated: EstimateCallback | None,
) -> None:
    """Add the missing answers to those that are `done`."""
    by_method: dict[str, list[_Trial]] = {}
    # The longest first, so that the time left is not underestimated.
    for trial in sorted(missing, key=lambda trial: -len(trial.prompt.text)):
        by_method.setdefault(trial.method.label, []).append(trial)
    total = done + len(missing)
    if progress:
        progress(done, total)
    size = measurement.max_batch_size  # of the first round, which is timed
    seconds = 0.0  # that the rest will take
    while by_method:
        # Methods take turns, so that whatever slows the machine meanwhile slows all of them.
        for trials in by_method.values():
            start = perf_counter()
            answers.add(_answered(model, task, measurement, trials[:size]))
            pace = (perf_counter() - start) / len(trials[:size])
            done += len(trials[:size])
            del trials[:size]
            seconds += pace * len(trials)
            if progress:
                progress(done, total)
        by_method = {label: trials for label, trials in by_method.items() if trials}
        if estimated and by_method:
            estimated(seconds, total - done)
            estimated = None
        size = measurement.max_batch_size * _BATCHES_PER_WRITE


def _answered(
    model: RagMiddleModel, task: Task, measurement: Measurement, trials: list[_Trial]
) -> list[Record]:
    """Records of trials under one method."""
    prompts = [trial.prompt for trial in trials]
    options: dict[str, Any] = {
        "method": trials[0].method.method,
        "max_batch_size": measurement.max_batch_size,
        "template": measurement.template,
        "on_missing_documents": "ignore",  # closed-book prompts have none on purpose
    }
    if measurement.scoring == "likelihood":
        targets = [_target(model, task, measurement, trial) for trial in trials]
        return [
            trial.record(
                scores={"greedy_match": float(score.is_greedy), "log_likelihood": score.total},
                answer=None,
                prompt_tokens=score.prompt_tokens,
                applied=score.applied,
            )
            for trial, score in zip(
                trials, model.score_batch(prompts, targets, **options), strict=True
            )
        ]
    generations = model.batch(
        prompts,
        max_new_tokens=measurement.max_new_tokens or task.max_new_tokens,
        stop=task.stop,
        **options,
    )
    return [
        trial.record(
            scores=task.scores(trial.item, trial.condition, generation.text),
            answer=generation.text,
            prompt_tokens=generation.usage.prompt_tokens,
            applied=generation.applied,
        )
        for trial, generation in zip(trials, generations, strict=True)
    ]


def _target(model: RagMiddleModel, task: Task, measurement: Measurement, trial: _Trial) -> str:
    """The answer as it would follow the prompt: after a space, unless a turn of a chat begins."""
    chat = uses_chat_template(model.tokenizer, measurement.template)
    target = task.target(trial.item, trial.condition)
    return target if chat or trial.prompt.suffix[-1:].isspace() else f" {target}"
