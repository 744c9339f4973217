"""Ask every question under every condition and method, once."""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import rag_middle
from rag_middle.documents import ContextPrompt
from rag_middle.errors import ContextOverflowError, EvaluationConfigError, EvaluationDataError
from rag_middle.evaluation.conditions import Condition, Item
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

__all__ = [
    "ProgressCallback",
    "check_measurement",
    "check_takes",
    "model_identity",
    "run",
    "software",
]

#: Called with the number of answers so far and the number of all.
ProgressCallback = Callable[[int, int], None]

_BATCHES_PER_WRITE = 4


def run(
    model: RagMiddleModel,
    task: Task,
    methods: Sequence[MethodSpec] = (BASELINE,),
    measurement: Measurement | None = None,
    *,
    records: str | Path | None = None,
    progress: ProgressCallback | None = None,
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

    Raises:
        EvaluationConfigError: positions that the task does not have, or a task that cannot be
            scored in this way, or whose prompts do not fit the model; the longest are asked first.
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
    with open_records(records, identity) as answers:
        for entry in labelled:
            answers.declare(entry.label, repr(entry.method))
        _ask(model, task, measurement, trials, answers, progress)
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


def _ask(
    model: RagMiddleModel,
    task: Task,
    measurement: Measurement,
    trials: Sequence[_Trial],
    answers: Records,
    progress: ProgressCallback | None,
) -> None:
    """Add an answer to every trial that has none."""
    by_method: dict[str, list[_Trial]] = {}
    # The longest first: what does not fit shows at once, and the time left is not underestimated.
    for trial in sorted(trials, key=lambda trial: -len(trial.prompt.text)):
        if trial.key not in answers:
            by_method.setdefault(trial.method.label, []).append(trial)
    done = len(trials) - sum(map(len, by_method.values()))
    if progress:
        progress(done, len(trials))
    size = measurement.max_batch_size * _BATCHES_PER_WRITE
    rounds = max((math.ceil(len(missing) / size) for missing in by_method.values()), default=0)
    for start in range(0, rounds * size, size):
        # Methods take turns, so that whatever slows the machine meanwhile slows all of them.
        for missing in by_method.values():
            chunk = missing[start : start + size]
            if not chunk:
                continue
            try:
                answers.add(_answered(model, task, measurement, chunk))
            except ContextOverflowError as error:
                raise EvaluationConfigError(
                    f"A prompt of {task.name} has {error.prompt_tokens} tokens and its answer up "
                    f"to {error.max_new_tokens}, but the context window has "
                    f"{error.context_window}. Ask for fewer documents or a shorter answer."
                ) from error
            done += len(chunk)
            if progress:
                progress(done, len(trials))


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
        template = measurement.template
        is_chat = template == "chat" or (template == "auto" and bool(model.tokenizer.chat_template))
        targets = []
        for trial in trials:
            # As it would follow the prompt: after a space, unless a turn of a chat begins.
            spaced = is_chat or trial.prompt.suffix[-1:].isspace()
            target = task.target(trial.item, trial.condition)
            targets.append(target if spaced else f" {target}")
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
