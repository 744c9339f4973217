"""The demonstration, step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from rag_middle.answering import Answerer
from rag_middle.demo.corpus import SavedCorpus, saved_corpus
from rag_middle.demo.demonstration import Demonstration
from rag_middle.demo.examples import Example, answered_examples
from rag_middle.demo.questions import AskedQuestions, CorpusTask, asked_questions
from rag_middle.errors import (
    EvaluationConfigError,
    EvaluationDataError,
    MethodConfigError,
    UnsupportedArchitectureError,
)
from rag_middle.evaluation import Item, Measurement, Results, fitted_presets, run
from rag_middle.evaluation.conditions import spread_positions
from rag_middle.evaluation.measurement import BASELINE, MethodSpec, labelled_methods
from rag_middle.evaluation.provenance import software
from rag_middle.evaluation.runner import Progress
from rag_middle.generation import MethodLike
from rag_middle.methods import resolve_method
from rag_middle.reader import READER_NAME
from rag_middle.retrieval import Built

__all__ = ["COMPARED", "READER", "Demo", "check_demo", "demonstrate"]

READER = READER_NAME
COMPARED = ("pine", "ms_poe")
"""Methods that are measured beside the chosen one: one that reorders, one that rescales RoPE."""

EXAMPLES = 5
POSITIONS = 5
_SPARE_TOKENS = 8  # beyond the longest right answer: an end token, a few words more
_BATCH = 16


class Demo:
    """Everything loaded: pages indexed, questions found, model ready.

    Args:
        model: a directory or a name on the hub; by default the bundled reader.
        method: what to compare with the unmodified model, besides `COMPARED` and what
            `fitted_presets` has for the model.
        method_options: its parameters, where it is a name.
        questions: to measure with, at every place.
        documents: in a prompt.
        corpus: the pages; by default written into the user's cache.
        on_index: called with what indexing did, before the model's weights are loaded.
        how: more arguments of ``Answerer.over``.

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
        **how: Any,
    ) -> None:
        started = perf_counter()
        check_demo(method, method_options, questions, documents)
        self.name = READER if model is None else str(model)
        self.documents = documents
        self.corpus = corpus or saved_corpus()
        if model is None and how.get("dtype", "auto") == "auto":
            # Few processors compute bfloat16 faster, and ties of importance are rarer here.
            how["dtype"] = "float32"
        self.answerer = Answerer.over(
            self.corpus.pages, model=model, top_k=documents, on_index=on_index, **how
        )
        able, self.left_out = self._takeable(_compared(method, method_options))
        fitted = fitted_presets(self.answerer.model)
        self.specs = [*able, *(each for each in fitted if each != method)]
        index = self.answerer.retriever.index
        found = asked_questions(
            index, self.corpus.questions, documents=documents, count=EXAMPLES + questions
        )
        self.few, self.asked = _divided(found, documents)
        self.pages = len({chunk.source for chunk in index.chunks})
        self.answer_tokens = self._answer_tokens()
        self.seconds = {"prepare": perf_counter() - started}

    @property
    def labels(self) -> tuple[str, ...]:
        """Of the methods, the unmodified model first."""
        return tuple(each.label for each in labelled_methods(self.specs))

    def examples(self) -> tuple[Example, ...]:
        """A few questions, each under every method with its documents in several orders.

        They are none of those that are measured.
        """
        started = perf_counter()
        shown = answered_examples(
            self.answerer.model,
            self.few,
            labelled_methods(self.specs),
            self.answerer.prompt_template,
            max_new_tokens=self.answer_tokens,
            stop=CorpusTask.stop,
            max_batch_size=_BATCH,
        )
        self.seconds["examples"] = perf_counter() - started
        return shown

    def measure(self, progress: Progress | None = None) -> Results:
        """Every question with its answering page at several places, under every method.

        Args:
            progress: told how many answers there are and will be.
        """
        started = perf_counter()
        task = CorpusTask(
            asked=self.asked.items,
            documents=self.documents,
            template=self.answerer.prompt_template,
        )
        how = Measurement(
            limit=len(self.asked.items),
            positions=spread_positions(self.documents, POSITIONS),
            max_new_tokens=self.answer_tokens,
            max_batch_size=_BATCH,
        )
        found = run(self.answerer.model, task, self.specs, how, progress=progress)
        self.seconds["measure"] = perf_counter() - started
        return found

    def finished(self, examples: tuple[Example, ...], results: Results) -> Demonstration:
        """What both steps have shown."""
        return Demonstration.of(
            results,
            examples=examples,
            model=self.name,
            software=software(self.answerer.model),
            threads=torch.get_num_threads(),
            pages=self.pages,
            missed=len(self.asked.missed),
            chance=self._chance(),
            left_out=self.left_out,
            seconds=dict(self.seconds),
        )

    def _takeable(self, specs: Sequence[MethodSpec]) -> tuple[list[MethodSpec], dict[str, str]]:
        """Those that the model can take, and why not the others; the first must be among them."""
        able, left_out = [], {}
        for at, (spec, each) in enumerate(zip(specs, labelled_methods(specs)[1:], strict=True)):
            try:
                self.answerer.model.checked_method(each.method)
            except (UnsupportedArchitectureError, MethodConfigError) as error:
                if at == 0:
                    raise
                left_out[each.label] = str(error)
            else:
                able.append(spec)
        return able, left_out

    def _answer_tokens(self) -> int:
        """Room for the longest right answer, and a little more."""
        tokenizer = self.answerer.model.tokenizer
        answers = [
            f" ({item.details['title']}) {item.answers[0]}"
            for item in (*self.few, *self.asked.items)
        ]
        longest = max(len(ids) for ids in tokenizer(answers, add_special_tokens=False)["input_ids"])
        return longest + _SPARE_TOKENS

    def _chance(self) -> float:
        def stating(item: Item) -> int:
            titles = [document.title for document in item.documents]
            wanted = item.details["attribute"]
            return sum(wanted in self.corpus.stated.get(title or "", ()) for title in titles)

        return float(np.mean([1 / max(1, stating(item)) for item in self.asked.items]))


def demonstrate(
    model: str | Path | None = None, *, progress: Progress | None = None, **how: Any
) -> Demonstration:
    """All steps of the demonstration.

    Args:
        model: a directory or a name on the hub; by default the bundled reader.
        progress: told how many answers there are and will be.
        how: arguments of `Demo`.

    Raises:
        As `Demo`.
    """
    demo = Demo(model, **how)
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
            f"documents must be at least 2, for places to compare; got {documents}."
        )
    if resolve_method(method, method_options).name == BASELINE:
        raise EvaluationConfigError(
            "The demonstration compares the unmodified model with a method: name one, such as "
            "method='pine'."
        )


def _compared(method: MethodLike, method_options: Mapping[str, Any] | None) -> list[MethodSpec]:
    """The chosen method, and those of `COMPARED` that are not the same one."""
    resolved = resolve_method(method, method_options)
    chosen: MethodSpec = resolved
    if isinstance(method, str):
        chosen = {"name": method, "options": dict(method_options or {}), "label": method}
    return [chosen, *(each for each in COMPARED if each != resolved.name)]


def _divided(found: AskedQuestions, documents: int) -> tuple[tuple[Item, ...], AskedQuestions]:
    """A few questions for the examples, the others for the measurement."""
    few, rest = found.items[:EXAMPLES], found.items[EXAMPLES:]
    short = [item for item in found.items if len(item.documents) < documents]
    if not rest or short:
        raise EvaluationDataError(
            f"Retrieval finds the answering page of {len(found.items)} questions, and fewer than "
            f"{documents} pages for {len(short)} of them: that is not enough. Ask for fewer "
            "documents."
        )
    return few, AskedQuestions(rest, found.missed)
