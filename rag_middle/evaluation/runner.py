"""Ask every question under every condition and method, once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rag_middle.documents import ContextPrompt
from rag_middle.errors import ContextOverflowError, EvaluationConfigError, EvaluationDataError
from rag_middle.evaluation.conditions import Condition
from rag_middle.evaluation.items import Item
from rag_middle.evaluation.measurement import (
    BASELINE,
    LabelledMethod,
    Measurement,
    MethodSpec,
    labelled_methods,
)
from rag_middle.evaluation.provenance import model_identity
from rag_middle.evaluation.records import Record, Records, open_records
from rag_middle.evaluation.results import Results
from rag_middle.evaluation.tasks import Task
from rag_middle.generation import Generation, RagMiddleModel, Score

__all__ = ["Progress", "run"]

#: Called with the answers there are and those there will be.
Progress = Callable[[int, int], None]

_BATCHES_AT_ONCE = 4  # between two writes to the records


@dataclass(frozen=True, slots=True)
class _Trial:
    item: Item
    condition: Condition
    method: LabelledMethod
    prompt: ContextPrompt

    @property
    def key(self) -> tuple[str, str, str]:
        return self.method.label, self.condition.name, self.item.id


def run(
    model: RagMiddleModel,
    task: Task,
    methods: Sequence[MethodSpec] = (BASELINE,),
    measurement: Measurement | None = None,
    *,
    records: str | Path | None = None,
    progress: Progress | None = None,
) -> Results:
    """Measure methods on a task.

    Answers already in `records` are not asked for again, so a run that was killed continues where
    it stopped, and one with more questions, positions or methods adds to an earlier one.

    Args:
        model: its own method is not used.
        task: the questions.
        methods: what to compare; the unmodified model always comes first.
        measurement: how; by default 100 questions, gold at five places, generated answers.
        records: a file to keep answers in, and to continue from.
        progress: told after every few batches.

    Raises:
        EvaluationConfigError: places that the task does not have, or a task that cannot be scored
            in this way, or whose prompts do not fit the model; the longest are asked first.
        EvaluationDataError: the task's data cannot be read, or holds no question.
        EvaluationRecordsError: `records` is damaged, belongs to another measurement, or is in use.
        UnsupportedArchitectureError, MethodConfigError: a method that the model cannot take; before
            anything is asked.
    """
    how = measurement or Measurement()
    chosen = check_measurable(task, methods, how)
    conditions = how.conditions(task)
    for each in chosen:  # a method the model cannot take is refused before an hour is spent
        RagMiddleModel(
            model.model, model.tokenizer, method=each.method, context_window=model.context_window
        )
    items = task.items(how.limit, how.seed)
    if not items:
        raise EvaluationDataError(f"{task.name} has no questions. Check its data and limit.")
    wanted = [
        (each, condition)
        for each in chosen
        for condition in (
            *conditions,
            *(how.control_conditions(task) if each.label == BASELINE else ()),
        )
    ]
    identity = {
        "task": task.to_dict(),
        "measurement": how.identity(),
        "model": model_identity(model),
    }
    with open_records(records, identity) as kept:
        for each in chosen:
            kept.declare(each.label, repr(each.method))
        total = len(wanted) * len(items)
        missing = [
            _Trial(item, condition, each, task.prompt(item, condition))
            for each, condition in wanted
            for item in items
            if (each.label, condition.name, item.id) not in kept
        ]
        if progress:
            progress(total - len(missing), total)
        _ask(model, task, how, missing, kept, progress, total)
        found = {
            (each.label, condition.name, item.id): kept[each.label, condition.name, item.id]
            for each, condition in wanted
            for item in items
        }
    return Results(
        task=task,
        measurement=how,
        methods=chosen,
        items=tuple(items),
        records=found,
        model=identity["model"],
    )


def check_measurable(
    task: Task, methods: Sequence[MethodSpec], how: Measurement
) -> tuple[LabelledMethod, ...]:
    """The methods with their labels, once what needs no model to be refused is refused.

    Raises:
        EvaluationConfigError, UnknownNameError, MethodConfigError: as `run`.
    """
    chosen = labelled_methods(methods)
    if how.scoring == "likelihood" and not task.by_likelihood:
        raise EvaluationConfigError(
            f"{task.name} has no single right answer whose likelihood could be measured: use "
            "scoring='generation'."
        )
    how.metric_names(task)
    how.places(task)
    return chosen


def _ask(
    model: RagMiddleModel,
    task: Task,
    how: Measurement,
    missing: list[_Trial],
    kept: Records,
    progress: Progress | None,
    total: int,
) -> None:
    # The longest first: what does not fit shows at once, and the time left is not underestimated.
    missing.sort(key=lambda trial: -len(trial.prompt.text))
    by_method: dict[str, list[_Trial]] = {}
    for trial in missing:
        by_method.setdefault(trial.method.label, []).append(trial)
    size = how.max_batch_size * _BATCHES_AT_ONCE
    longest = max((math.ceil(len(trials) / size) for trials in by_method.values()), default=0)
    done = total - len(missing)
    for at in range(longest):
        # Methods take turns, so that whatever slows the machine meanwhile slows all of them.
        for trials in by_method.values():
            chunk = trials[at * size : (at + 1) * size]
            if not chunk:
                continue
            try:
                records = _answered(model, task, how, chunk)
            except ContextOverflowError as error:
                raise EvaluationConfigError(
                    f"A prompt of {task.name} has {error.prompt_tokens} tokens and its answer up "
                    f"to {error.max_new_tokens}, but the model holds {error.context_window}. Ask "
                    "for fewer documents or a shorter answer."
                ) from error
            kept.add(records)
            done += len(chunk)
            if progress:
                progress(done, total)


def _answered(
    model: RagMiddleModel, task: Task, how: Measurement, trials: list[_Trial]
) -> list[Record]:
    shared: dict[str, Any] = {
        "method": trials[0].method.method,
        "max_batch_size": how.max_batch_size,
        "template": how.template,
        "on_missing_documents": "ignore",  # closed-book prompts have none on purpose
    }
    prompts = [trial.prompt for trial in trials]
    if how.scoring == "likelihood":
        targets = [
            _continuation(
                model, how.template, trial.prompt, task.target(trial.item, trial.condition)
            )
            for trial in trials
        ]
        scores = model.score_batch(prompts, targets, **shared)
        return [_scored(trial, score) for trial, score in zip(trials, scores, strict=True)]
    answers = model.batch(
        prompts,
        max_new_tokens=how.max_new_tokens or task.max_new_tokens,
        stop=task.stop,
        **shared,
    )
    return [_generated(task, trial, each) for trial, each in zip(trials, answers, strict=True)]


def _generated(task: Task, trial: _Trial, answer: Generation) -> Record:
    return Record(
        method=trial.method.label,
        condition=trial.condition.name,
        item=trial.item.id,
        scores=task.scores(trial.item, trial.condition, answer.text),
        answer=answer.text,
        prompt_tokens=answer.usage.prompt_tokens,
        applied=answer.applied,
    )


def _scored(trial: _Trial, score: Score) -> Record:
    return Record(
        method=trial.method.label,
        condition=trial.condition.name,
        item=trial.item.id,
        scores={"greedy_match": float(score.is_greedy), "log_likelihood": score.total},
        answer=None,
        prompt_tokens=score.prompt_tokens,
        applied=score.applied,
    )


def _continuation(
    model: RagMiddleModel,
    template: Literal["auto", "chat", "raw"],
    prompt: ContextPrompt,
    target: str,
) -> str:
    """The answer as it would follow the prompt: after a space, unless a chat turn begins."""
    chat = template == "chat" or (template == "auto" and bool(model.tokenizer.chat_template))
    after_text = not chat and not prompt.suffix[-1:].isspace()
    return f" {target}" if after_text else target
