"""Three questions answered, and a few measured by the position of the document that answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any

from rag_middle.answering import Answerer
from rag_middle.errors import ConfigError
from rag_middle.evaluation import Bootstrap, Item, Measurement, MultiDocumentQA, run
from rag_middle.evaluation.metrics import best_subspan_em
from rag_middle.evaluation.statistics import Estimate, paired_difference
from rag_middle.generation import MethodLike, RagMiddleModel
from rag_middle.methods import resolve_method
from rag_middle.passages import passages_path

QUESTIONS = (
    "who is the owner of reading football club",
    "when is the last time the philadelphia won the superbowl",
    "how many episodes are there in dragon ball z",
)
"""Those that are answered; they are not measured."""
CHOSEN = (
    "The questions are the first of the file for which SmolLM2-135M-Instruct, unmodified, writes "
    "a text with a correct answer in it, the best of ten documents first or last. Those measured "
    "are not chosen."
)
DATA = "NaturalQuestions-Open, 600 gold passages from Wikipedia (CC BY-SA 3.0)"
_POSITIONS = 3
_ANSWER_TOKENS = 24


def full_measurement() -> dict[str, Any] | None:
    """A measurement as `Demo.measure` makes, of more questions and with the `accuracy` (a share) at
    each position, if it comes with the package."""
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
        self.methods = (resolve_method("none"), compared)
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
            for method in self.methods:
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
                        {"method": method.name, "best": best, "text": answer.text, "right": right}
                    )
            yield {"question": question, "answers": answers, "sources": sources, "replies": replies}

    def measure(
        self,
        questions: int = 4,
        documents: int = 5,
        *,
        progress: Callable[[int, int], None] | None = None,
        command: str = "",
    ) -> dict[str, Any]:
        """Other questions, the gold document at the first, the middle and the last position.

        Prompts are those of `MultiDocumentQA`, the other passages those most like the question.
        The score is the log-likelihood of the first correct answer, which tells more of few
        questions than accuracy. `last_minus_first` is of the unmodified model, paired.

        Args:
            questions: how many.
            documents: in a prompt.
            progress: called with the number of prompts so far and of all.
            command: that repeats it.

        Returns:
            Provenance, and a curve per method: `positions`, and at each `log_likelihood` (nats) as
            ``value``, ``low`` and ``high`` of its 95 % interval.
        """
        task = _OtherQuestions(data=passages_path(), documents=documents, distractors="hard")
        how = Measurement(
            limit=questions, positions=_POSITIONS, max_batch_size=4, scoring="likelihood"
        )
        results = run(self.model, task, self.methods[-1:], how, progress=progress)
        likelihoods = {
            m.label: results.scores(m.label, None, "log_likelihood") for m in results.methods
        }
        curves = [
            {
                "label": label,
                "positions": list(results.positions),
                "log_likelihood": [_interval(mean) for mean in Bootstrap(scores).estimates()],
            }
            for label, scores in likelihoods.items()
        ]
        base = likelihoods["none"]
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
            "metric": "log_likelihood",
            "curves": curves,
            "last_minus_first": _interval(paired_difference(base[:, -1], base[:, 0])),
        }


class _OtherQuestions(MultiDocumentQA):
    """Those that are not among `QUESTIONS`."""

    def items(self, limit: int | None, seed: int) -> list[Item]:
        items = super().items(None if limit is None else limit + len(QUESTIONS), seed)
        return [item for item in items if item.question not in QUESTIONS][:limit]


def _interval(estimate: Estimate) -> dict[str, float]:
    return {"value": estimate.value, "low": estimate.low, "high": estimate.high}
