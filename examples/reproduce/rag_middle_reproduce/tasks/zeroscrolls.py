"""ZeroSCROLLS (arXiv:2305.14196): its prompts are in the data, its metrics here."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from rag_middle import ContextPrompt, Document, FileFormatError
from rag_middle.evaluation import Condition, Item, arranged_documents, get_field
from rag_middle.evaluation.metrics import f1
from rag_middle_reproduce.tasks import metrics
from rag_middle_reproduce.tasks.file_task import ContextTask, choose

__all__ = ["ZeroScrolls"]


def _choice(answer: str, right: str) -> float:
    """1 where the first letter of a choice is the right one."""
    stated, wanted = (
        re.search(r"(?<![A-Za-z])[A-D](?![A-Za-z])", text) for text in (answer, right)
    )
    return float(stated is not None and wanted is not None and stated[0] == wanted[0])


def _f1(answer: str, right: str) -> float:
    return f1(answer, [right])


#: The main metric of each dataset, and how an answer gets it.
_SCORES: dict[str, tuple[str, Callable[[str, str], float]]] = {
    **dict.fromkeys(
        ("gov_report", "summ_screen_fd", "qmsum", "squality"), ("rouge_mean", metrics.rouge_mean)
    ),
    **dict.fromkeys(("qasper", "narrative_qa", "musique"), ("f1", _f1)),
    "quality": ("accuracy", _choice),
    "space_digest": ("percentage_similarity", metrics.percentage_similarity),
    "book_sum_sort": ("concordance", metrics.concordance),
}


@dataclass(frozen=True, kw_only=True)
class ZeroScrolls(ContextTask):
    """One dataset of ZeroSCROLLS.

    Lines hold the whole prompt (``input``) and where its parts begin and end
    (``document_start_index``, ``document_end_index``). Only the split ``validation`` has answers
    (``output``), about 20 of each dataset; those of ``test`` are kept back, and scored by the
    benchmark's site.

    The benchmark cuts the end of a document that is too long and says so; here its middle goes.

    Attributes:
        data: JSON lines of one dataset.
        dataset: which one, for the metric.
        max_prompt_tokens: longer prompts lose their middle; None for as many as the model takes.
    """

    name: ClassVar[str] = "zeroscrolls"
    title: ClassVar[str] = "ZeroSCROLLS"
    source: ClassVar[str] = "tau/zero_scrolls"
    max_new_tokens: ClassVar[int] = 1024

    dataset: str

    def __post_init__(self) -> None:
        super().__post_init__()
        metric, _ = choose(self.name, "dataset", self.dataset, _SCORES)
        self._set(metrics=(metric,))

    def items(self, limit: int | None, seed: int) -> list[Item]:
        items: dict[str, Item] = {}
        for line, content in self._lines(None):
            name = get_field(content, "id", str, line)
            answer = get_field(content, "output", str, line)
            if not answer.strip():
                raise FileFormatError(
                    f"{line} has no answer: take the split 'validation', the answers of 'test' are "
                    "not published."
                )
            if name in items:  # one line for each reference
                known = items[name]
                items[name] = Item(
                    id=name,
                    question=known.question,
                    answers=(*known.answers, answer),
                    others=known.others,
                    details=known.details,
                )
                continue
            text = get_field(content, "input", str, line)
            start, end = (
                get_field(content, f"document_{place}_index", int, line)
                for place in ("start", "end")
            )
            items[name] = Item(
                id=name,
                question=text[end:],
                answers=(answer,),
                others=(Document(text[start:end]),),
                details={"instruction": text[:start]},
            )
        return list(items.values())[:limit]

    def prompt(self, item: Item, condition: Condition) -> ContextPrompt:
        documents = arranged_documents(item, condition)
        return ContextPrompt(item.details["instruction"], documents, item.question, separator="")

    def scores(self, item: Item, condition: Condition, answer: str) -> dict[str, float]:
        metric, score = _SCORES[self.dataset]
        return {metric: max(score(answer.strip(), right) for right in item.answers)}
