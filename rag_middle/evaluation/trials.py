"""Ask every question under every condition and method, once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

from rag_middle.documents import ContextPrompt
from rag_middle.errors import ConfigError, FileFormatError, WeightsNeededError
from rag_middle.evaluation.asking import AnsweringWorkers, Batch, replies
from rag_middle.evaluation.conditions import Condition, Item
from rag_middle.evaluation.lengths import CheckedPrompt, check_lengths, cut_middle
from rag_middle.evaluation.measurement import (
    BASELINE,
    LabelledMethod,
    Measurement,
    MethodSpec,
    labelled_methods,
)
from rag_middle.evaluation.records import Key, Record, Records, open_records
from rag_middle.evaluation.results import Results
from rag_middle.evaluation.screening import SCREENED, collapse
from rag_middle.evaluation.tasks import Task
from rag_middle.generation import MethodLike, RagMiddleModel, Score, TextGenerator
from rag_middle.methods import Method
from rag_middle.thinking import answer_after_thinking
from rag_middle.tokens import uses_chat_template

#: Called with the number of prompts answered so far and the number of all.
ProgressCallback = Callable[[int, int], None]

#: Called with the seconds that the answers still missing will take, and their number.
EstimateCallback = Callable[[float, int], None]

#: Called with the results so far, of the two or more questions that have all their answers at the
#: positions, without controls and grid, and with the number of questions of the run.
InterimCallback = Callable[[Results, int], None]

#: Called with the prompts that will be asked, each with its method, and the most new tokens of an
#: answer.
PlanCallback = Callable[[Sequence[tuple[ContextPrompt, Method]], int], None]

_BATCHES_PER_WRITE = 4
_TIMED = 10  # answers, of all methods together, by whose pace the time of the rest is estimated
_DECIDING = ("rag-middle", "torch", "transformers")  # other versions may answer otherwise


def run(
    model: TextGenerator,
    task: Task,
    methods: Sequence[MethodSpec] = (BASELINE,),
    measurement: Measurement | None = None,
    *,
    records: str | Path | None = None,
    progress: ProgressCallback | None = None,
    estimated: EstimateCallback | None = None,
    planned: PlanCallback | None = None,
    workers: AnsweringWorkers | None = None,
    interim: InterimCallback | None = None,
    drop_collapsed: bool = False,
) -> Results:
    """Measure methods on a task.

    Answers already in `records` are not asked for again, so a run that was killed continues where
    it stopped, and one with more questions, positions or methods adds to an earlier one. The same
    prompt is asked once under a method, and so are all orders of its documents under an order-free
    one: the answer is recorded under every condition that it holds for.

    Args:
        model: its own method is not used. One behind an HTTP address
            (`rag_middle.endpoint.EndpointModel`) is asked for generated answers only.
        task: the questions.
        methods: what to compare; the unmodified model always comes first.
        measurement: how; by default 100 questions, the gold document at five positions, generated
            answers.
        records: a file to keep answers in, and to continue from.
        progress: called after every few batches.
        estimated: called once, after a few answers under each method, at most ten in all, have
            been timed. The longest prompts are asked first, so the rest takes rather less.
        planned: called once before the first prompt is asked, where any is missing; what it raises
            ends the run.
        workers: that answer, each with the same model (`Answering`), instead of `model` itself.
            Batches are the same ones; what can change last digits is another number of threads.
        interim: called after every few batches, as soon as there is something to show.
        drop_collapsed: ask no further questions under methods that make right answers unlikely
            (`rag_middle.evaluation.screening`), where log-likelihoods can be had. They are in
            `Results.left_out`.

    Raises:
        RagMiddleError: a worker process ended.
        ConfigError: positions that the task does not have, or a task that cannot be
            scored in this way, or whose prompts do not fit the model; all are checked before the
            first is asked.
        FileFormatError: the task's data cannot be read, or holds no question.
        FileFormatError: `records` is damaged, belongs to another measurement, or is in use.
        UnsupportedArchitectureError, MethodConfigError: a method that the model cannot take; before
            anything is asked.
        WeightsNeededError: a method, or log-likelihoods, of a model behind an HTTP address.
        EndpointError: its server failed; answers until then are in `records`.

    Example:
        >>> results = run(model, task, ["pine"], Measurement(limit=50))
        >>> plot_position_curves(results.curves()).savefig("curves.png")
    """
    measurement = measurement or Measurement()
    labelled = check_measurement(task, methods, measurement)
    if measurement.scoring == "likelihood":
        local(model, "Log-likelihoods come")
    for entry in labelled:
        check_takes(model, entry.method)
    items, repeated = task.distinct_items(measurement.limit, measurement.seed)
    if not items:
        raise FileFormatError(f"{task.name} has no questions. Check its data and limit.")
    controls = measurement.control_conditions(task)
    trials = [
        _Trial(item, condition, entry, _prompt(model, task, measurement, item, condition))
        for entry in labelled
        for condition in (
            *measurement.conditions(task),
            *measurement.grid_conditions(task),
            *(controls if entry.label == BASELINE else ()),
        )
        for item in items
    ]
    software = model.software()
    identity = {
        "task": task.to_dict(),
        "measurement": measurement.identity(),
        "model": model.identity(),
        # A report names the versions of one run, so all of its answers have to be of these.
        "software": {name: software[name] for name in _DECIDING if name in software},
    }
    most_tokens = _most_tokens(model, task, measurement)
    if most_tokens is not None:  # prompts that are cut to another length are other prompts
        identity["measurement"]["most_prompt_tokens"] = most_tokens
    kept = open_records(
        records,
        identity,
        metrics=measurement.metric_names(task),
        generated=measurement.scoring == "generation",
    )
    with kept as answers:
        for entry in labelled:
            answers.declare(entry.label, repr(entry.method))
        if measurement.scoring == "generation":
            _score_thinking(model, task, measurement, trials, answers)
        dropped = {
            entry.label: answers.dropped[entry.label]
            for entry in labelled
            if drop_collapsed and entry.label in answers.dropped
        }
        distinct = _distinct([t for t in trials if t.method.label not in dropped], answers)
        missing = [trial for trial in distinct if trial.key not in answers]
        _check_lengths(model, task, measurement, missing)
        if planned and missing:
            asking = [(trial.prompt, trial.method.method) for trial in missing]
            planned(asking, _room(measurement, task))

        def results_of(measured: Measurement, complete: Sequence[_Trial]) -> Results:
            included = {trial.item.id for trial in complete}
            return Results(
                task=task,
                measurement=measured,
                methods=tuple(entry for entry in labelled if entry.label not in dropped),
                items=tuple(item for item in items if item.id in included),
                records={trial.key: answers[trial.key] for trial in complete},
                model=identity["model"],
                software=software,
                left_out=dict(dropped),
                repeated=repeated,
            )

        # Shorter prompts are asked last, so that no question has its controls before the end.
        reduced = replace(measurement, controls=False, changes=(), grid=())
        names = {condition.name for condition in reduced.conditions(task)}

        def kept_trials() -> list[_Trial]:
            return [trial for trial in trials if trial.method.label not in dropped]

        def show_interim() -> None:
            shown = [trial for trial in kept_trials() if trial.condition.name in names]
            waiting = {trial.item.id for trial in shown if trial.key not in answers}
            complete = [trial for trial in shown if trial.item.id not in waiting]
            if interim and len(items) - len(waiting) > 1:
                interim(results_of(reduced, complete), len(items))

        screens = (
            drop_collapsed
            and task.by_likelihood
            and isinstance(model, RagMiddleModel)
            and len(items) > SCREENED
        )

        def screened() -> Collection[str]:
            """Labels of methods to ask no further."""
            conditions = replace(reduced, orders=0).conditions(task)
            middle, first = conditions[len(conditions) // 2], {i.id for i in items[:SCREENED]}
            asking: dict[str, list[_Trial]] = {}
            for trial in distinct:
                if trial.item.id in first and trial.answers(middle):
                    asking.setdefault(trial.method.label, []).append(trial)
            waiting = {trial.method.label for trial in missing if trial.key not in answers}
            scored = {
                label: _log_likelihoods(model, task, measurement, asking[label], answers, workers)
                for label in (BASELINE, *(waiting - {BASELINE}))
                if waiting - {BASELINE}
            }
            for label, own in scored.items():
                if reason := collapse(scored[BASELINE], own):
                    answers.drop(label, reason)
                    dropped[label] = reason
            return dropped

        _ask(
            model,
            task,
            measurement,
            missing,
            answers,
            len(distinct) - len(missing),
            progress,
            estimated,
            workers,
            show_interim if interim else None,
            screened if screens else None,
        )
        return results_of(measurement, kept_trials())


def _prompt(
    model: TextGenerator, task: Task, measurement: Measurement, item: Item, condition: Condition
) -> ContextPrompt:
    """What is asked, without its middle where the task wants that and it is too long."""
    prompt = task.prompt(item, condition)
    if condition.change == "question_first":
        prompt = replace(prompt, prefix=f"{item.question}\n\n{prompt.prefix}")
    most_tokens = _most_tokens(model, task, measurement)
    if most_tokens is None:
        return prompt
    assert isinstance(model, RagMiddleModel)  # there is no limit elsewhere
    return cut_middle(model, prompt, most_tokens, template=measurement.template)


def _most_tokens(model: TextGenerator, task: Task, measurement: Measurement) -> int | None:
    """Tokens that prompts are cut to; None where they stay whole."""
    if not task.cuts_middle or not isinstance(model, RagMiddleModel):
        return None
    window = model.context_window
    limits = [task.most_prompt_tokens, window and window - _room(measurement, task)]
    return min((limit for limit in limits if limit is not None), default=None)


def check_measurement(
    task: Task, methods: Sequence[MethodSpec], measurement: Measurement
) -> tuple[LabelledMethod, ...]:
    """The methods with their labels, once what needs no model to be refused is refused.

    Raises:
        ConfigError, UnknownNameError, MethodConfigError: as `run`.
    """
    labelled = labelled_methods(methods)
    if measurement.scoring == "likelihood" and not task.by_likelihood:
        raise ConfigError(
            f"{task.name} has no single right answer whose log-likelihood could be measured: use "
            "scoring='generation'."
        )
    if measurement.orders and task.fixed_order:
        raise ConfigError(
            f"The reference answers of {task.name} depend on the order of its documents. Leave "
            "orders out (0).",
        )
    measurement.metric_names(task)
    measurement.layout(task)
    measurement.gold_positions(task)
    return labelled


def check_takes(model: TextGenerator, method: MethodLike) -> None:
    """Refuse a method that the model cannot take, before an hour is spent.

    Raises:
        UnsupportedArchitectureError, MethodConfigError, WeightsNeededError: why it cannot take it.
    """
    if isinstance(model, RagMiddleModel):
        # A model of its own: `model` may leave the check of the method's effect out.
        RagMiddleModel(model.model, model.tokenizer, method=method, kernels=model.kernels)
    else:
        model.checked_method(method)


def local(model: TextGenerator, what: str) -> RagMiddleModel:
    """The model, where its weights are here.

    Args:
        what: begins the message: what comes from weights only.

    Raises:
        WeightsNeededError: they are behind an HTTP address.
    """
    if isinstance(model, RagMiddleModel):
        return model
    raise WeightsNeededError(
        f"{what} from a model's weights, and this one is behind an HTTP address, which gives "
        "answers only: score these with scoring='generation' (--score-by generation), or load "
        "the model here.",
    )


@dataclass(frozen=True, slots=True)
class _Trial:
    """One prompt to ask.

    Attributes:
        also: other conditions that its answer holds for.
    """

    item: Item
    condition: Condition
    method: LabelledMethod
    prompt: ContextPrompt
    also: tuple[Condition, ...] = ()

    @property
    def key(self) -> Key:
        return self.method.label, self.condition.name, self.item.id

    @property
    def sent(self) -> Hashable:
        """What all prompts have in common that have the same answer."""
        documents = [repr(document) for document in self.prompt.documents]
        if self.method.method.order_free:
            documents.sort()
        rest = self.prompt.prefix, self.prompt.suffix, self.prompt.separator
        return self.method.label, self.item.id, *rest, *documents

    def answers(self, condition: Condition) -> bool:
        """Whether its answer holds for a condition."""
        return condition in (self.condition, *self.also)

    def records(self, **fields: Any) -> list[Record]:
        """A record for each condition."""
        method, _, item = self.key
        return [
            Record(method=method, condition=condition.name, item=item, **fields)
            for condition in (self.condition, *self.also)
        ]


def _distinct(trials: Sequence[_Trial], answers: Records) -> list[_Trial]:
    """One trial for all that have the same answer, whose recorded answers are completed."""
    alike: dict[Hashable, list[_Trial]] = {}
    for trial in trials:
        alike.setdefault(trial.sent, []).append(trial)
    for same in alike.values():
        recorded = next((answers[trial.key] for trial in same if trial.key in answers), None)
        if recorded is not None:
            missing = [trial for trial in same if trial.key not in answers]
            answers.add(replace(recorded, condition=trial.condition.name) for trial in missing)
    return [
        replace(first, also=tuple(trial.condition for trial in others))
        for first, *others in alike.values()
    ]


def _room(measurement: Measurement, task: Task) -> int:
    """The most new tokens of an answer."""
    return measurement.max_new_tokens or task.max_new_tokens


def _check_lengths(
    model: TextGenerator, task: Task, measurement: Measurement, trials: Sequence[_Trial]
) -> None:
    if not isinstance(model, RagMiddleModel):
        return  # there is no tokenizer: the server refuses the first, which is the longest
    room = _room(measurement, task)

    def new_tokens(trial: _Trial) -> int:
        if measurement.scoring == "generation":
            return room
        return len(model.token_ids(_target(model, task, measurement, trial)))

    prompts = [CheckedPrompt(trial.item.id, trial.prompt, new_tokens(trial)) for trial in trials]
    number = "documents" if hasattr(task, "documents") else "keys"
    check_lengths(
        model,
        prompts,
        template=measurement.template,
        parameter=None if task.fixed_length else number,
    )


def _ask(
    model: TextGenerator,
    task: Task,
    measurement: Measurement,
    missing: Sequence[_Trial],
    answers: Records,
    done: int,
    progress: ProgressCallback | None,
    estimated: EstimateCallback | None,
    workers: AnsweringWorkers | None,
    show_interim: Callable[[], None] | None,
    screened: Callable[[], Collection[str]] | None,
) -> None:
    """Add the missing answers to those that are `done`."""
    by_method: dict[str, list[_Trial]] = {}
    # The longest first, so that the time left is not underestimated. Prompts of a question follow
    # one another: they begin alike, and what they have in common is read once.
    for trial in sorted(missing, key=lambda trial: (-len(trial.prompt.text), trial.item.id)):
        by_method.setdefault(trial.method.label, []).append(trial)
    total = done + len(missing)
    if progress:
        progress(done, total)
    batches = measurement.max_batch_size * (workers.count if workers else 1)
    size = min(batches, max(1, _TIMED // max(1, len(by_method))))
    is_timed = workers is None
    if workers:  # they load their models in the first round, so the second one is timed
        size = batches
    while by_method:
        seconds = 0.0  # that the rest will take
        # Methods take turns, so that whatever slows the machine meanwhile slows all of them.
        for trials in by_method.values():
            start = perf_counter()
            for records in _answered(model, task, measurement, trials[:size], workers):
                answers.add(records)
            pace = (perf_counter() - start) / len(trials[:size])
            done += len(trials[:size])
            del trials[:size]
            seconds += pace * (len(trials) + (SCREENED if screened else 0))
            if progress:
                progress(done, total)
            if show_interim:
                show_interim()
        if estimated and is_timed and done < total:
            estimated(seconds, total - done)
            estimated = None
        if screened and done < total:
            for label in screened():
                total -= len(by_method.pop(label, ()))
            by_method = {
                label: [trial for trial in trials if trial.key not in answers]
                for label, trials in by_method.items()
            }
            done = total - sum(map(len, by_method.values()))
            screened = None
        by_method = {label: trials for label, trials in by_method.items() if trials}
        size, is_timed = batches * _BATCHES_PER_WRITE, True


def _log_likelihoods(
    model: TextGenerator,
    task: Task,
    measurement: Measurement,
    trials: Sequence[_Trial],
    answers: Records,
    workers: AnsweringWorkers | None,
) -> list[float]:
    """Of the right answers under one method, in the order of the items' ids."""
    by_likelihood = replace(measurement, scoring="likelihood", metric=None, max_new_tokens=None)
    keeps = measurement.scoring == "likelihood"
    found = {t.item.id: answers[t.key] for t in trials if keeps and t.key in answers}
    missing = [trial for trial in trials if trial.item.id not in found]
    for records in _answered(model, task, by_likelihood, missing, workers) if missing else ():
        found[records[0].item] = records[0]
        if keeps:
            answers.add(records)
    return [record.scores["log_likelihood"] for _, record in sorted(found.items())]


def _answered(
    model: TextGenerator,
    task: Task,
    measurement: Measurement,
    trials: list[_Trial],
    workers: AnsweringWorkers | None,
) -> Iterator[list[Record]]:
    """Records of each trial under one method, as they come: answers may have been paid for."""
    options: dict[str, Any] = {
        "method": trials[0].method.method,
        "max_batch_size": measurement.max_batch_size,
        "template": measurement.template,
        "on_missing_documents": "ignore",  # closed-book prompts have none on purpose
    }
    targets = None
    if measurement.scoring == "likelihood":
        scorer = local(model, "Log-likelihoods come")
        targets = [_target(scorer, task, measurement, trial) for trial in trials]
    else:
        options |= {"max_new_tokens": _room(measurement, task), "stop": task.stop}
    begun = targets is None and _thinks(model, measurement, trials[0])
    batch = Batch(prompts=[trial.prompt for trial in trials], targets=targets, options=options)
    for index, reply in replies(model, batch, measurement.max_batch_size, workers):
        trial = trials[index]
        said: str | None = ""
        if isinstance(reply, Score):
            scores = {"greedy_match": float(reply.is_greedy), "log_likelihood": reply.total}
            text, prompt_tokens, withheld = None, reply.prompt_tokens, False
        else:
            text, prompt_tokens = reply.text, reply.usage.prompt_tokens
            withheld = reply.finish_reason == "content_filter"
            said = answer_after_thinking(text, begun=begun)
            scores = dict(task.scores(trial.item, trial.condition, said or ""))
        yield trial.records(
            scores=scores,
            answer=text,
            prompt_tokens=prompt_tokens,
            applied=reply.applied,
            withheld=withheld,
            unfinished=said is None,
        )


def _score_thinking(
    model: TextGenerator,
    task: Task,
    measurement: Measurement,
    trials: Sequence[_Trial],
    answers: Records,
) -> None:
    """Score recorded answers as new ones: earlier versions took thinking for a part of them."""
    recorded = [(trial, answers[trial.key]) for trial in trials if trial.key in answers]
    begun = bool(recorded) and _thinks(model, measurement, recorded[0][0])
    for trial, record in recorded:
        text = record.answer or ""
        said = answer_after_thinking(text, begun=begun)
        if (said is None) != record.unfinished or said not in (None, text):
            scores = dict(task.scores(trial.item, trial.condition, said or ""))
            answers.correct([replace(record, scores=scores, unfinished=said is None)])


def _thinks(model: TextGenerator, measurement: Measurement, trial: _Trial) -> bool:
    """Whether prompts end within the model's thinking, as far as is known here."""
    return isinstance(model, RagMiddleModel) and model.begins_thinking(
        trial.prompt, template=measurement.template
    )


def _target(model: RagMiddleModel, task: Task, measurement: Measurement, trial: _Trial) -> str:
    """The answer as it would follow the prompt: after a space, unless a turn of a chat begins."""
    chat = uses_chat_template(model.tokenizer, measurement.template)
    target = task.target(trial.item, trial.condition)
    return target if chat or trial.prompt.suffix[-1:].isspace() else f" {target}"
