"""The demonstration, step by step, and what it has shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from rag_middle.answering import Answerer
from rag_middle.demo.corpus import SavedCorpus, saved_corpus
from rag_middle.demo.examples import Example, answered_examples
from rag_middle.demo.questions import CITED, CorpusTask, retrieved_questions
from rag_middle.errors import (
    EvaluationConfigError,
    EvaluationDataError,
    MethodConfigError,
    UnsupportedArchitectureError,
)
from rag_middle.evaluation import (
    Bootstrap,
    LabelledMethod,
    Measurement,
    PositionCurves,
    ProgressCallback,
    Recommendation,
    Results,
    Shape,
    Summary,
    fitted_presets,
    labelled_methods,
    run,
    shape_of,
    spread_positions,
)
from rag_middle.evaluation.conclusions import recommend_from
from rag_middle.evaluation.measurement import BASELINE, MethodSpec
from rag_middle.evaluation.statistics import wilson
from rag_middle.generation import MethodLike, RagMiddleModel
from rag_middle.methods import resolve_method
from rag_middle.reader import READER_NAME
from rag_middle.retrieval import Built
from rag_middle.wording import Argument

__all__ = ["COMPARED", "Demo", "Demonstration", "check_demo", "demonstrate"]

COMPARED = ("pine",)
"""Methods that are measured beside the chosen one."""

EXAMPLES = 5
_CANDIDATES = 2 * EXAMPLES  # questions of which the examples are chosen
POSITIONS = 5
_SPARE_TOKENS = 8  # beyond the longest right answer: an end token, a few words more
_BATCH = 16


@dataclass(frozen=True, kw_only=True)
class Demonstration:
    """What was shown.

    Attributes:
        made: when, ISO 8601, UTC.
        model: its name as it was given, or "the bundled reader".
        dtype: of its weights.
        software: versions and device.
        threads: of the CPU computation.
        pages: in the index.
        documents: in a prompt.
        missed: questions that were left out because retrieval did not find their page.
        chance: accuracy of picking at random among the pages in the prompt that state what is
            asked.
        examples: questions in several orders of their documents.
        passed_over: questions before the last example that no method answers right.
        curves: accuracy by the position of the gold document, with Wilson intervals at each
            position; means and gaps with bootstrap intervals over questions.
        summary: means, paired differences to the unmodified model.
        shape: of the unmodified model's curve.
        recommendation: what to use for this model on these pages, with verdicts on each method.
        cited: share of answers that name the page that answers, by method label.
        left_out: methods that the model cannot take, with the reason.
        seconds: by step.
    """

    made: str
    model: str
    dtype: str
    software: Mapping[str, str]
    threads: int
    pages: int
    documents: int
    missed: int
    chance: float
    examples: tuple[Example, ...]
    passed_over: int
    curves: PositionCurves
    summary: Summary
    shape: Shape
    recommendation: Recommendation
    cited: Mapping[str, float]
    left_out: Mapping[str, str]
    seconds: Mapping[str, float]

    @classmethod
    def of(cls, results: Results, **facts: Any) -> Demonstration:
        """What the answers to all questions say.

        Args:
            results: of `Demo.measure`.
            facts: the attributes that are not about them.
        """
        curves = results.curves()
        asked = curves.questions
        with_wilson = tuple(
            replace(
                curve,
                estimates=tuple(wilson(round(e.value * asked), asked) for e in curve.estimates),
            )
            for curve in curves.curves
        )
        return cls(
            made=datetime.now(UTC).isoformat(timespec="seconds"),
            dtype=str(results.model["dtype"]),
            software=results.software,
            documents=curves.documents,
            curves=replace(curves, curves=with_wilson),
            summary=results.summary(),
            shape=shape_of(Bootstrap(results.scores(BASELINE))),
            recommendation=recommend_from(results),
            cited={
                label: float(results.scores(label, metric_name=CITED).mean())
                for label in curves.labels
            },
            **facts,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            **asdict(self),
            "examples": [example.to_dict() for example in self.examples],
            "curves": self.curves.to_dict(),
            "summary": self.summary.to_dict(),
        }


class Demo:
    """Everything loaded: pages indexed, questions found, model ready.

    Args:
        model: a directory or a name on the hub; by default the bundled reader.
        method: what to compare with the unmodified model, besides `COMPARED` and what
            `fitted_presets` has for the model.
        method_options: its parameters, where it is a name.
        questions: to measure with, at every position.
        documents: in a prompt.
        corpus: the pages; by default written into the user's cache.
        on_index: called with what indexing did, before the model's weights are loaded.
        options: more arguments of ``Answerer.over``.

    Attributes:
        methods: what is compared, the unmodified model first.
        left_out: methods that the model cannot take, with the reason.
        example_items: the questions that examples are chosen of.
        measured_items: the questions of the measurement.
        missed: questions that were left out because retrieval did not find their page.
        seconds: by step.

    Raises:
        EvaluationConfigError: `questions` or `documents` make no sense, or `method` is the
            unmodified model.
        EvaluationDataError: retrieval finds too few pages that answer.
        OutputWriteError: the pages cannot be written.
        UnsupportedArchitectureError, MethodConfigError: the model cannot take `method`.
        As ``Answerer.over``.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        method: MethodLike = "pine",
        method_options: Mapping[str, Any] | None = None,
        questions: int = 100,
        documents: int = 20,
        corpus: SavedCorpus | None = None,
        on_index: Callable[[Built], None] | None = None,
        **options: Any,
    ) -> None:
        started = perf_counter()
        check_demo(method, method_options, questions, documents)
        self.name = READER_NAME if model is None else str(model)
        self.documents = documents
        self.corpus = corpus or saved_corpus()
        self.answerer = Answerer.over(
            self.corpus.pages, model=model, top_k=documents, on_index=on_index, **options
        )
        assert isinstance(self.answerer.model, RagMiddleModel)  # it was loaded here
        self._model = self.answerer.model
        self.left_out: dict[str, str] = {}
        compared = self._able(_compared(method, method_options))
        presets = [name for name in fitted_presets(self._model) if name != method]
        self.methods = labelled_methods([*compared, *presets])
        index = self.answerer.retriever.index
        self.pages = len({chunk.source for chunk in index.chunks})
        items, self.missed = retrieved_questions(
            index, self.corpus.questions, documents=documents, count=_CANDIDATES + questions
        )
        short = [item for item in items if len(item.documents) < documents]
        if len(items) <= EXAMPLES or short:
            raise EvaluationDataError(
                f"Retrieval finds the gold document of {len(items)} questions, and fewer than "
                f"{documents} pages for {len(short)} of them: that is not enough. Ask for fewer "
                "documents."
            )
        self.measured_items = items[EXAMPLES:][:questions]
        self.example_items = items[:EXAMPLES] + items[EXAMPLES + questions :]
        answers = [f" ({item.details['title']}) {item.answers[0]}" for item in items]
        tokens = self._model.tokenizer(answers, add_special_tokens=False)["input_ids"]
        self._answer_tokens = max(map(len, tokens)) + _SPARE_TOKENS
        self._passed_over = 0
        self.seconds = {"prepare": perf_counter() - started}

    def examples(self) -> tuple[Example, ...]:
        """A few questions, each under every method with its documents in several orders.

        They are none of those that are measured: the first that some method answers right in at
        least one order. Where these are too few, others fill up.
        """
        started = perf_counter()
        candidates = answered_examples(
            self._model,
            self.example_items,
            self.methods,
            self.answerer.prompt_template,
            max_new_tokens=self._answer_tokens,
            stop=CorpusTask.stop,
            max_batch_size=_BATCH,
        )
        self.seconds["examples"] = perf_counter() - started
        # Sorting keeps the order of equals.
        preferred = sorted(candidates, key=lambda example: not example.is_answered)
        examples = tuple(sorted(preferred[:EXAMPLES], key=candidates.index))
        self._passed_over = candidates.index(examples[-1]) + 1 - len(examples)
        return examples

    def measure(self, progress: ProgressCallback | None = None) -> Results:
        """Every question with its gold document at several positions, under every method.

        Args:
            progress: called with the number of answers so far and the number of all.
        """
        started = perf_counter()
        task = CorpusTask(
            questions=tuple(self.measured_items),
            documents=self.documents,
            template=self.answerer.prompt_template,
        )
        measurement = Measurement(
            limit=len(self.measured_items),
            positions=spread_positions(self.documents, POSITIONS),
            max_new_tokens=self._answer_tokens,
            max_batch_size=_BATCH,
        )
        results = run(self._model, task, self.methods, measurement, progress=progress)
        self.seconds["measure"] = perf_counter() - started
        return results

    def finished(self, examples: tuple[Example, ...], results: Results) -> Demonstration:
        """What both steps have shown."""
        return Demonstration.of(
            results,
            examples=examples,
            passed_over=self._passed_over,
            model=self.name,
            threads=torch.get_num_threads(),
            pages=self.pages,
            missed=len(self.missed),
            chance=self._chance(),
            left_out=self.left_out,
            seconds=dict(self.seconds),
        )

    def _able(self, specs: Sequence[MethodSpec]) -> list[LabelledMethod]:
        """Those that the model can take; the first must be among them."""
        able: list[LabelledMethod] = []
        for method in labelled_methods(specs)[1:]:
            try:
                self._model.checked_method(method.method)
            except (UnsupportedArchitectureError, MethodConfigError) as error:
                if not able:
                    raise
                self.left_out[method.label] = str(error)
            else:
                able.append(method)
        return able

    def _chance(self) -> float:
        """Accuracy of picking at random among the pages that state what is asked."""
        shares = []
        for item in self.measured_items:
            attribute = item.details["attribute"]
            stating = [
                document
                for document in item.documents
                if attribute in self.corpus.stated.get(document.title or "", ())
            ]
            shares.append(1 / max(1, len(stating)))
        return float(np.mean(shares))


def demonstrate(
    model: str | Path | None = None, *, progress: ProgressCallback | None = None, **options: Any
) -> Demonstration:
    """All steps of the demonstration.

    Args:
        model: a directory or a name on the hub; by default the bundled reader.
        progress: called with the number of answers so far and the number of all.
        options: arguments of `Demo`.

    Raises:
        As `Demo`.
    """
    demo = Demo(model, **options)
    examples = demo.examples()
    return demo.finished(examples, demo.measure(progress))


def check_demo(
    method: MethodLike, method_options: Mapping[str, Any] | None, questions: int, documents: int
) -> None:
    """Refuse what makes no sense before anything is loaded.

    Raises:
        EvaluationConfigError: too few questions or documents, or nothing to compare with.
        UnknownNameError, MethodConfigError: no such method, or not with these parameters.
    """
    if questions < 1:
        raise EvaluationConfigError(f"questions must be at least 1, got {questions}.")
    if documents < 2:
        raise EvaluationConfigError(
            f"documents must be at least 2, to compare positions; got {documents}."
        )
    if resolve_method(method, method_options).name == BASELINE:
        raise EvaluationConfigError(
            "The demonstration compares the unmodified model with a method: name one, such as ",
            Argument("method", "pine"),
            ".",
        )


def _compared(method: MethodLike, method_options: Mapping[str, Any] | None) -> list[MethodSpec]:
    """The chosen method, and those of `COMPARED` that are not the same one."""
    resolved = resolve_method(method, method_options)
    chosen: MethodSpec = resolved
    if isinstance(method, str):
        chosen = {"name": method, "options": dict(method_options or {}), "label": method}
    return [chosen, *(name for name in COMPARED if name != resolved.name)]
