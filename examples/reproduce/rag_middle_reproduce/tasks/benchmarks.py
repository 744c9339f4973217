"""Benchmarks of many datasets, each with a prompt, a length and a score of its own.

What differs between datasets stands in ``benchmarks.yaml``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from rag_middle import ContextPrompt, Document, FileFormatError
from rag_middle.evaluation import Condition, Item, arranged_documents, as_answers, get_field
from rag_middle.evaluation.tasks.base import require_one_of
from rag_middle_reproduce.tasks.file_task import BENCHMARKS, ContextTask
from rag_middle_reproduce.tasks.metrics import SCORES

_PASSAGE = re.compile(r"(?m)^(?=Passage \d+:\n)")


@dataclass(frozen=True, kw_only=True)
class _Benchmark(ContextTask):
    """One dataset of a benchmark, which decides prompt, metric and length of answers."""

    dataset: str

    def __post_init__(self) -> None:
        super().__post_init__()
        require_one_of(self.name, [*BENCHMARKS[self.name]], dataset=self.dataset)
        decided = {
            "metrics": (self._chosen["metric"],),
            "max_new_tokens": self._chosen.get("max_new_tokens", self.max_new_tokens),
            "stop": tuple(self._chosen.get("stop", ())),
        }
        for name, value in decided.items():
            object.__setattr__(self, name, value)

    @property
    def _chosen(self) -> Mapping[str, Any]:
        chosen: Mapping[str, Any] = BENCHMARKS[self.name][self.dataset]
        return chosen

    def prompt(self, item: Item, condition: Condition) -> ContextPrompt:
        before, _, after = self._chosen["prompt"].partition("{context}")
        documents = arranged_documents(item, condition)
        return ContextPrompt(before, documents, after.replace("{input}", item.question), "")

    def scores(self, item: Item, condition: Condition, answer: str) -> dict[str, float]:
        metric = self._chosen["metric"]
        score = SCORES[self._chosen.get("score", metric)]
        more = (item.details["classes"],) if metric == "classification" else ()
        scored = self._scored_part(answer)
        return {metric: max(score(scored, right, *more) for right in item.answers)}

    def _scored_part(self, answer: str) -> str:
        """The part of an answer that is scored."""
        return answer.strip()


@dataclass(frozen=True, kw_only=True)
class LongBench(_Benchmark):
    """One English dataset of LongBench (arXiv:2308.14508): its prompt, its length and its metric.

    Attributes:
        data: the dataset's file, JSON lines with ``context``, ``input``, ``answers``, ``dataset``
            and ``all_classes``. LongBench-E's files have the same fields.
        dataset: which one; other lines of the file are left out.
        passages: make a document of each "Passage 3:" of the context, for methods that need
            documents. Otherwise the context is one document.
        max_prompt_tokens: longer prompts lose their middle; None for as many as the model takes.

    Chat models are asked without their template where the context holds examples (trec, triviaqa,
    samsum) and for code: set ``template: raw`` for these.
    """

    name: ClassVar[str] = "longbench"
    title: ClassVar[str] = "LongBench"
    source: ClassVar[str] = "THUDM/LongBench (MIT)"

    dataset: str = "hotpotqa"
    passages: bool = False

    def read(self, line: str, content: dict[str, Any]) -> Iterator[Item]:
        if content.get("dataset") != self.dataset:
            return
        context = get_field(content, "context", str, line)
        texts = [t for t in _PASSAGE.split(context) if t] if self.passages else [context]
        yield Item(
            id="",
            question=get_field(content, "input", str, line),
            answers=as_answers(content.get("answers"), line),
            others=tuple(map(Document, texts)),
            details={"classes": content.get("all_classes") or ()},
        )

    def _scored_part(self, answer: str) -> str:
        few_shot = self._chosen.get("few_shot")
        return answer.lstrip("\n").partition("\n")[0] if few_shot else answer


@dataclass(frozen=True, kw_only=True)
class LEval(_Benchmark):
    """One closed-ended dataset of L-Eval (arXiv:2307.11088), scored by exact match.

    A line has a document (``input``), ``instructions`` about it and their ``outputs``; each
    instruction is a question. Answers are read as the benchmark's scorer reads them, but none is
    guessed: where it finds no letter it takes A.

    Out of reach: the open-ended datasets that a judge model scores, and codeU, whose scorer needs
    the words of its own prompt.

    Attributes:
        data: JSON lines of one dataset.
        dataset: which one, for instruction and score.
        max_prompt_tokens: longer prompts lose their middle (the benchmark cuts the end); None for
            as many as the model takes.
    """

    name: ClassVar[str] = "l_eval"
    title: ClassVar[str] = "L-Eval"
    source: ClassVar[str] = "L4NLP/LEval (GPL-3.0)"
    max_new_tokens: ClassVar[int] = 512

    def read(self, line: str, content: dict[str, Any]) -> Iterator[Item]:
        document = Document(get_field(content, "input", str, line))
        instructions = get_field(content, "instructions", list, line)
        outputs = get_field(content, "outputs", list, line)
        if len(instructions) != len(outputs):
            raise FileFormatError(
                f"{line} has {len(instructions)} instructions and {len(outputs)} outputs: one "
                "output belongs to each instruction."
            )
        for question, answer in zip(instructions, outputs, strict=True):
            yield Item(id="", question=str(question), answers=(str(answer),), others=(document,))


@dataclass(frozen=True, kw_only=True)
class ZeroScrolls(_Benchmark):
    """One dataset of ZeroSCROLLS (arXiv:2305.14196).

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

    def items(self, limit: int | None, seed: int) -> list[Item]:
        items: dict[str, Item] = {}
        for item in super().items(None, seed):
            first = items.setdefault(item.id, item)
            if first is not item:  # one line for each reference
                items[item.id] = replace(first, answers=(*first.answers, *item.answers))
        return list(items.values())[:limit]

    def read(self, line: str, content: dict[str, Any]) -> Iterator[Item]:
        answer = get_field(content, "output", str, line)
        if not answer.strip():
            raise FileFormatError(
                f"{line} has no answer: take the split 'validation', the answers of 'test' are not "
                "published."
            )
        text = get_field(content, "input", str, line)
        start, end = (
            get_field(content, f"document_{place}_index", int, line) for place in ("start", "end")
        )
        yield Item(
            id=get_field(content, "id", str, line),
            question=text[end:],
            answers=(answer,),
            others=(Document(text[start:end]),),
            details={"instruction": text[:start]},
        )

    def prompt(self, item: Item, condition: Condition) -> ContextPrompt:
        documents = arranged_documents(item, condition)
        return ContextPrompt(item.details["instruction"], documents, item.question, separator="")
