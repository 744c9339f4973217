"""Three questions answered, and accuracy by the position of the document that answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from importlib import resources
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from rag_middle.answering import Answerer
from rag_middle.documents import Document
from rag_middle.errors import ConfigError
from rag_middle.evaluation import Bootstrap, Item, MultiDocumentQA, position, spread_positions
from rag_middle.evaluation.metrics import best_subspan_em
from rag_middle.evaluation.statistics import Estimate, paired_difference, wilson
from rag_middle.generation import MethodLike, RagMiddleModel
from rag_middle.methods import resolve_method
from rag_middle.passages import passages_path
from rag_middle.tokens import uses_chat_template

QUESTIONS = (
    "who is the owner of reading football club",
    "when is the last time the philadelphia won the superbowl",
    "how many episodes are there in dragon ball z",
)
"""Those that are answered; they are not measured."""
CHOSEN = (
    "The questions are the first of the file for which SmolLM2-135M-Instruct, unmodified, writes "
    "a text with a right answer in it, the best of ten documents first or last. Those measured are "
    "not chosen."
)
DATA = "NaturalQuestions-Open, 600 gold passages from Wikipedia (CC BY-SA 3.0)"
_POSITIONS = 3
_SPARE = 10  # passages to replace those that contain the answer, or are the gold one
_ANSWER_TOKENS = 24


def full_measurement() -> dict[str, Any] | None:
    """A measurement as `Demo.measure` makes, of more questions, if it comes with the package."""
    file = resources.files(__package__).joinpath("full_measurement.json")
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None


class Demo:
    """Passages indexed, model loaded.

    What its methods return is JSON-ready. A method that does not depend on the order of documents
    is asked once for all orders.

    Args:
        model: a directory or a name on the hub; by default as for ``Answerer.over``.
        method: what to compare with the unmodified model.
        method_options: its parameters, where it is a name.
        top_k: documents of a prompt that is answered.
        options: more arguments of ``Answerer.over``.

    Raises:
        ConfigError: `method` is the unmodified model.
        As ``Answerer.over``.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        method: MethodLike = "pine",
        method_options: Mapping[str, Any] | None = None,
        top_k: int = 10,
        **options: Any,
    ) -> None:
        compared = resolve_method(method, method_options)
        if compared.name == "none":
            raise ConfigError(
                "The demonstration compares the unmodified model with a method: name one, such as "
                "method='pine' (--method pine)."
            )
        self.methods = {"none": resolve_method("none"), compared.name: compared}
        self.answerer = Answerer.over(passages_path(), model=model, top_k=top_k, **options)
        assert isinstance(self.answerer.model, RagMiddleModel)  # it was loaded here
        self.model = self.answerer.model
        lines = passages_path().read_text(encoding="utf-8").splitlines()
        self._lines = [json.loads(line) for line in lines]

    def examples(self) -> Iterator[dict[str, Any]]:
        """Each of `QUESTIONS`, its sources, and the answers with the best one first and last."""
        for line in (line for line in self._lines if line["question"] in QUESTIONS):
            question, answers = line["question"], line["answers"]
            best_first = self.answerer.retriever(question)
            replies: list[dict[str, Any]] = []
            sources: list[dict[str, Any]] = []
            for label, method in self.methods.items():
                orders = {"first": best_first, "last": best_first[::-1]}
                if method.order_free:
                    orders = {"anywhere": best_first}
                for best, documents in orders.items():
                    answer = self.answerer.ask(
                        question, documents=documents, method=method, max_new_tokens=_ANSWER_TOKENS
                    )
                    sources = sources or [source.to_dict() for source in answer.sources]
                    right = bool(best_subspan_em(answer.text, answers))
                    replies.append(
                        {"method": label, "best": best, "text": answer.text, "right": right}
                    )
            yield {"question": question, "answers": answers, "sources": sources, "replies": replies}

    def measure(
        self,
        questions: int = 6,
        documents: int = 5,
        *,
        progress: Callable[[int, int], None] | None = None,
        command: str = "",
    ) -> dict[str, Any]:
        """Other questions, the gold document at the first, the middle and the last position.

        Prompts and accuracy are those of `MultiDocumentQA`; the log-likelihood is that of the
        first right answer. `last_minus_first` is of the unmodified model, paired.

        Args:
            questions: how many.
            documents: in a prompt.
            progress: called with the number of questions so far and of all.
            command: that repeats it.

        Returns:
            Provenance, and a curve per method: `positions`, and at each `accuracy` (a share) and
            `log_likelihood` (nats) as ``value``, ``low`` and ``high`` of its 95 % interval.
        """
        task = MultiDocumentQA(data=passages_path(), documents=documents)
        positions = spread_positions(documents, _POSITIONS)
        space = "" if uses_chat_template(self.model.tokenizer, "auto") else " "
        scores: dict[str, tuple[list[Any], list[Any]]] = {name: ([], []) for name in self.methods}
        for done, item in enumerate(islice(self._items(documents), questions), start=1):
            for label, method in self.methods.items():
                asked = positions[:1] if method.order_free else positions
                conditions = [position(index) for index in asked]
                prompts = [task.prompt(item, condition) for condition in conditions]
                replies = self.model.batch(prompts, method=method, max_new_tokens=_ANSWER_TOKENS)
                targets = [space + item.answers[0]] * len(prompts)
                scored = self.model.score_batch(prompts, targets, method=method)
                times = len(positions) // len(asked)
                right = [
                    task.scores(item, condition, reply.text)["best_subspan_em"]
                    for condition, reply in zip(conditions, replies, strict=True)
                ]
                scores[label][0].append(right * times)
                scores[label][1].append([score.total for score in scored] * times)
            if progress:
                progress(done, questions)
        curves = [
            {
                "label": label,
                "positions": list(positions),
                "accuracy": [
                    _interval(wilson(int(column.sum()), questions)) for column in np.array(rights).T
                ],
                "log_likelihood": [
                    _interval(mean) for mean in Bootstrap(np.array(likely)).estimates()
                ],
            }
            for label, (rights, likely) in scores.items()
        ]
        base = np.array(scores["none"][1])
        identity = self.model.identity()
        return {
            "model": identity["name"],
            "digest": identity["weights"],
            "software": self.model.software(),
            "data": DATA,
            "documents": documents,
            "questions": questions,
            "seed": 0,
            "made": datetime.now(UTC).date().isoformat(),
            "command": command,
            "metric": "accuracy",
            "curves": curves,
            "last_minus_first": _interval(paired_difference(base[:, -1], base[:, 0])),
        }

    def _items(self, documents: int) -> Iterator[Item]:
        """Questions in the order of the file, each with its gold passage and the nearest others.

        None of the others contains an answer.
        """
        for number, line in enumerate(self._lines, start=1):
            if line["question"] in QUESTIONS:
                continue
            others = [
                _document(found.title, found.text)
                for found in self.answerer.retriever(line["question"], top_k=documents + _SPARE)
                if found.metadata["line"] != number
                and not best_subspan_em(found.text, line["answers"])
            ]
            yield Item(
                id=str(number),
                question=line["question"],
                answers=tuple(line["answers"]),
                gold=_document(line["title"], line["text"]),
                others=tuple(others[: documents - 1]),
            )


def _document(title: str | None, text: str) -> Document:
    """As `MultiDocumentQA` shows it."""
    return Document(f"Document (Title: {title}) {text}")


def _interval(estimate: Estimate) -> dict[str, float]:
    return {"value": estimate.value, "low": estimate.low, "high": estimate.high}
