"""Ask every question under every condition and method, once: here, or in worker processes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any, TypeAlias

from rag_middle.documents import ContextPrompt
from rag_middle.errors import ConfigError, EndpointError, FileFormatError
from rag_middle.evaluation.conditions import Condition, Item
from rag_middle.evaluation.measurement import (
    BASELINE,
    LabelledMethod,
    Measurement,
    MethodSpec,
    labelled_methods,
)
from rag_middle.evaluation.records import AnswerRecord, Key, Records
from rag_middle.evaluation.results import Results
from rag_middle.evaluation.tasks import Task
from rag_middle.evaluation.tasks.base import as_continuation
from rag_middle.generation import Generation, MethodLike, RagMiddleModel, Score, TextGenerator
from rag_middle.generation.sharing import ModelCopy
from rag_middle.methods import Method
from rag_middle.thinking import answer_after_thinking
from rag_middle.tokens import uses_chat_template
from rag_middle.workers import Workers

#: Called with the number of prompts answered so far and the number of all.
ProgressCallback = Callable[[int, int], None]

#: Called with the seconds that the answers still missing will take, and their number.
EstimateCallback = Callable[[float, int], None]

#: Called with the prompts that will be asked, each with its method, and the most new tokens of an
#: answer.
PlanCallback = Callable[[Sequence[tuple[ContextPrompt, Method]], int], None]

_BATCHES_PER_WRITE = 4
_TIMED = 10  # answers, of all methods together, by whose pace the time of the rest is estimated
_DECIDING = ("rag-middle", "torch", "transformers")  # other versions may answer otherwise


# -- who answers ----------------------------------------------------------------------------------

#: The index of a prompt, and its generated answer or the log-likelihood of a given one.
IndexedReply: TypeAlias = tuple[int, Generation | Score]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Prompts that are asked in the same way.

    Attributes:
        prompts: to ask.
        targets: one per prompt, whose log-likelihood is wanted; None: answers are generated.
        options: of `as_completed`, or of `score_batch`.
    """

    prompts: Sequence[ContextPrompt]
    targets: Sequence[str] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


#: Workers that do a batch at a time.
AnsweringWorkers: TypeAlias = Workers[Batch, list[IndexedReply]]


@dataclass(frozen=True, slots=True)
class Answering(ModelCopy):
    """Loads a model in a worker, which answers there.

    Example:
        >>> with closing(Processes(Answering("my-model"), 4, threads_each=1)) as workers:
        ...     results = run(model, task, ["pine"], workers=workers)
    """

    def __call__(self) -> Callable[[Batch], list[IndexedReply]]:
        model = self.load()
        return lambda batch: [*answered(model, batch)]


def answered(model: TextGenerator, batch: Batch) -> Iterator[IndexedReply]:
    """The index of each prompt with its reply, as they come."""
    if batch.targets is None:
        yield from model.as_completed(batch.prompts, **batch.options)
    else:
        assert isinstance(model, RagMiddleModel)
        yield from enumerate(model.score_batch(batch.prompts, batch.targets, **batch.options))


# -- a run ----------------------------------------------------------------------------------------


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

    Raises:
        RagMiddleError: a worker process ended.
        ConfigError: positions that the task does not have, or a task that cannot be
            scored in this way, or whose prompts do not fit the model; all are checked before the
            first is asked.
        FileFormatError: the task's data cannot be read, or holds no question; or `records` belongs
            to another run.
        UnsupportedArchitectureError, MethodConfigError: a method that the model cannot take; before
            anything is asked.
        EndpointError: a method, or log-likelihoods, of a model behind an HTTP address; or its
            server failed: answers until then are in `records`.

    Example:
        >>> results = run(model, task, ["pine"], Measurement(limit=50))
        >>> plot_position_curves(results.curves()).savefig("curves.png")
    """
    measurement = measurement or Measurement()
    labelled = check_measurement(task, methods, measurement)
    if measurement.scoring == "likelihood" and not isinstance(model, RagMiddleModel):
        raise EndpointError(
            "Log-likelihoods come from a model's weights, and this one is behind an HTTP address, "
            "which gives answers only: score these with scoring='generation' (--score-by "
            "generation), or load the model here."
        )
    for entry in labelled:
        check_takes(model, entry.method)
    items = tuple(task.items(measurement.limit, measurement.seed))
    if not items:
        raise FileFormatError(f"{task.name} has no questions. Check its data and limit.")
    asker = _Asker(model, task, measurement, workers)
    trials: dict[Hashable, _Trial] = {}
    keys: list[Key] = []
    for entry in labelled:
        for condition in measurement.conditions(task, controls=entry.label == BASELINE):
            for item in items:
                trial = _Trial(item, condition, entry, asker.prompt(item, condition))
                keys.append((entry.label, condition.name, item.id))
                trials.setdefault(trial.sent, trial).keys.append(keys[-1])
    software = model.software()
    identity: dict[str, Any] = {
        "task": task.to_dict(),
        "measurement": measurement.identity(),
        "model": model.identity(),
        "context_window": model.context_window,
        # A report names the versions of one run, so all of its answers have to be of these.
        "software": {name: software[name] for name in _DECIDING if name in software},
    }
    answers = Records(records, identity)
    for entry in labelled:
        answers.declare(entry.label, repr(entry.method))
    missing = [trial for trial in trials.values() if not trial.is_answered(answers)]
    if missing:
        asker.check_length(max(missing, key=lambda trial: len(trial.prompt.text)))
    if planned and missing:
        planned([(t.prompt, t.method.method) for t in missing], asker.max_new_tokens)

    for done, seconds in asker.ask(missing, answers):
        if progress:
            progress(len(trials) - len(missing) + done, len(trials))
        if estimated and seconds is not None and done < len(missing):
            estimated(seconds, len(missing) - done)
            estimated = None
    return Results(
        task=task,
        measurement=measurement,
        methods=labelled,
        items=items,
        records={key: answers[key] for key in keys},
        model=identity["model"],
        software=software,
    )


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
            f"{task.name} has no single correct answer whose log-likelihood could be measured: use "
            "scoring='generation'."
        )
    measurement.metric_names(task)
    measurement.gold_positions(task)
    return labelled


def check_takes(model: TextGenerator, method: MethodLike) -> None:
    """Refuse a method that the model cannot take, before an hour is spent.

    Raises:
        UnsupportedArchitectureError, MethodConfigError, EndpointError: why it cannot take it.
    """
    if isinstance(model, RagMiddleModel):
        # A model of its own: `model` may leave the check of the method's effect out.
        RagMiddleModel(model.model, model.tokenizer, method=method, kernels=model.kernels)
    else:
        model.checked_method(method)


def check_length(
    model: RagMiddleModel, prompt: ContextPrompt, new_tokens: int, **shape: Any
) -> None:
    """Refuse a prompt that does not fit the context window together with its answer.

    Args:
        shape: how the prompt is written: `template`, `system`.

    Raises:
        ConfigError: it does not; with the number of its documents that would.
    """
    encoded, window = model.encode(prompt, method="none", **shape), model.context_window
    if window is None or len(encoded) + new_tokens <= window:
        return
    lengths = encoded.layout.document_lengths
    room = window - new_tokens - (len(encoded) - sum(lengths))
    fitting = room * len(lengths) // max(1, sum(lengths))
    raise ConfigError(
        f"The longest prompt does not fit: it has {len(encoded)} tokens in {len(lengths)} "
        f"documents, its answer up to {new_tokens}, and the context window has {window}. "
        + (
            f"Ask for fewer documents: about {fitting} fit."
            if fitting >= 2
            else "Use a model with a larger context window, or shorter documents."
        )
    )


@dataclass(frozen=True, slots=True)
class _Trial:
    """One prompt to ask.

    Attributes:
        keys: all that its answer is recorded under.
    """

    item: Item
    condition: Condition
    method: LabelledMethod
    prompt: ContextPrompt
    keys: list[Key] = field(default_factory=list)

    @property
    def sent(self) -> Hashable:
        """What all prompts have in common that have the same answer."""
        documents = [repr(document) for document in self.prompt.documents]
        if self.method.method.order_free:
            documents.sort()
        rest = self.prompt.prefix, self.prompt.suffix, self.prompt.separator
        return self.method.label, self.item.id, *rest, *documents

    def records(self, **fields: Any) -> list[AnswerRecord]:
        """The answer under each key."""
        return [
            AnswerRecord(method=method, condition=condition, item=item, **fields)
            for method, condition, item in self.keys
        ]

    def is_answered(self, answers: Records) -> bool:
        """Whether there is an answer under any key; it is then recorded under all."""
        answered = next((answers[key] for key in self.keys if key in answers), None)
        if answered is None:
            return False
        missing = [key for key in self.keys if key not in answers]
        answers.add(replace(answered, condition=condition) for _, condition, _ in missing)
        return True


@dataclass(frozen=True, slots=True)
class _Asker:
    """Who is asked, and how."""

    model: TextGenerator
    task: Task
    measurement: Measurement
    workers: AnsweringWorkers | None

    @property
    def max_new_tokens(self) -> int:
        return self.measurement.max_new_tokens or self.task.max_new_tokens

    def prompt(self, item: Item, condition: Condition) -> ContextPrompt:
        """What is asked, cut where the task wants that."""
        prompt = self.task.prompt(item, condition)
        if isinstance(self.model, RagMiddleModel):
            return self.task.fitted(
                prompt, self.model, self.max_new_tokens, self.measurement.template
            )
        return prompt

    def check_length(self, trial: _Trial) -> None:
        """Refuse a prompt that does not fit; a server refuses it itself."""
        model = self.model
        if isinstance(model, RagMiddleModel):
            tokens = self.max_new_tokens
            if self.measurement.scoring == "likelihood":
                tokens = len(model.token_ids(self._target(model, trial)))
            shape = {"template": self.measurement.template, "system": self.task.system}
            check_length(model, trial.prompt, tokens, **shape)

    def ask(
        self, missing: Sequence[_Trial], answers: Records
    ) -> Iterator[tuple[int, float | None]]:
        """Add the missing answers, a few batches at a time.

        Yields:
            How many are there, beginning with 0; and the seconds that the rest will take, known
            once every method has answered.
        """
        by_method: dict[str, list[_Trial]] = {}
        # The longest first, so that the time left is not underestimated.
        for trial in sorted(missing, key=lambda trial: (-len(trial.prompt.text), trial.item.id)):
            by_method.setdefault(trial.method.label, []).append(trial)
        done, is_timed = 0, self.workers is None
        yield done, None
        at_once = self.measurement.max_batch_size * (self.workers.count if self.workers else 1)
        # Workers load their models in the first round, so their second one is timed.
        size = min(at_once, max(1, _TIMED // max(1, len(by_method)))) if is_timed else at_once
        while by_method:
            seconds = 0.0  # that the rest will take
            # Methods take turns, so that whatever slows the machine meanwhile slows all of them.
            *_, last = by_method
            for label, trials in by_method.items():
                start, asked, by_method[label] = perf_counter(), trials[:size], trials[size:]
                for records in self._answered(asked):
                    answers.add(records)
                seconds += (perf_counter() - start) / len(asked) * len(by_method[label])
                done += len(asked)
                yield done, seconds if is_timed and label == last else None
            by_method = {label: trials for label, trials in by_method.items() if trials}
            size, is_timed = at_once * _BATCHES_PER_WRITE, True

    def _answered(self, trials: Sequence[_Trial]) -> Iterator[list[AnswerRecord]]:
        """Records of each trial under one method, as they come: answers may have been paid for."""
        model, task, measurement = self.model, self.task, self.measurement
        options: dict[str, Any] = {
            "method": trials[0].method.method,
            "max_batch_size": measurement.max_batch_size,
            "template": measurement.template,
            "on_missing_documents": "ignore",  # closed-book prompts have none on purpose
        }
        if task.system is not None:
            options["system"] = task.system
        targets, begun = None, False
        if measurement.scoring == "likelihood":
            assert isinstance(model, RagMiddleModel)
            targets = [self._target(model, trial) for trial in trials]
        else:
            options |= {"max_new_tokens": self.max_new_tokens, "stop": task.stop}
            # Whether prompts end within the model's thinking, as far as is known here.
            begun = isinstance(model, RagMiddleModel) and model.begins_thinking(
                trials[0].prompt, template=measurement.template
            )
        batch = Batch(prompts=[trial.prompt for trial in trials], targets=targets, options=options)
        for index, reply in self._replies(batch):
            trial = trials[index]
            if isinstance(reply, Score):
                yield trial.records(
                    scores={"greedy_match": float(reply.is_greedy), "log_likelihood": reply.total},
                    answer=None,
                    prompt_tokens=reply.prompt_tokens,
                    applied=reply.applied,
                )
                continue
            said = answer_after_thinking(reply.text, begun=begun)
            yield trial.records(
                scores=dict(task.scores(trial.item, trial.condition, said or "")),
                answer=reply.text,
                prompt_tokens=reply.usage.prompt_tokens,
                applied=reply.applied,
                withheld=reply.finish_reason == "content_filter",
                unfinished=said is None,
            )

    def _replies(self, batch: Batch) -> Iterator[IndexedReply]:
        """The index of each prompt with its reply; workers take parts of the batch."""
        if self.workers is None:
            yield from answered(self.model, batch)
            return
        size = self.measurement.max_batch_size
        starts = range(0, len(batch.prompts), size)
        parts = [
            replace(
                batch,
                prompts=batch.prompts[start : start + size],
                targets=batch.targets and batch.targets[start : start + size],
            )
            for start in starts
        ]
        for index, made in self.workers.results(parts):
            yield from ((starts[index] + at, reply) for at, reply in made)

    def _target(self, model: RagMiddleModel, trial: _Trial) -> str:
        chat = uses_chat_template(model.tokenizer, self.measurement.template)
        return as_continuation(
            self.task.target(trial.item, trial.condition), trial.prompt, chat=chat
        )
