"""RULER's generated files: needles, chains of variables, frequent words, questions."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from rag_middle.documents import ContextPrompt, Document
from rag_middle.errors import EvaluationDataError
from rag_middle.evaluation.conditions import Condition, Item
from rag_middle.evaluation.tasks.data_files import as_answers, get_field
from rag_middle.evaluation.tasks.published import (
    PublishedTask,
    cut_passages,
    one_holding,
    published_item,
)

__all__ = ["Ruler"]

_PASSAGES = 20
_RANKED = re.compile(r"(?:^|\n\n)Document (\d+):\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """A task of RULER, told by the words of its prompt before and after the context."""

    name: str
    before: str
    after: str
    max_new_tokens: int
    metric: str = "string_match_all"


#: Of ``scripts/data/synthetic/constants.py`` (lengths of answers, words around the context) and
#: ``scripts/eval/synthetic/constants.py`` (scores).
_KINDS = (
    _Kind(
        name="needles",
        # Bounded: a text that holds the beginning many times is searched in linear time.
        before=r"special magic \w+ (?:is|are) hidden .{1,300}? afterwards\.\s",
        after=r"\sWhat (?:is|are) (?:all )?the special magic ",
        max_new_tokens=128,
    ),
    _Kind(
        name="variable tracking",
        before=r"variable assignment hidden in the following text\.\s+",
        after=r"\sQuestion: Find all variables ",
        max_new_tokens=30,
    ),
    _Kind(
        name="common words",
        before=r"Memorize the ones that appear most often\.\s",
        after=r"\sQuestion: What are the \d+ most common words ",
        max_new_tokens=120,
    ),
    _Kind(
        name="frequent words",
        before=r"Find the \w+ most frequently appeared coded words\.\s",
        after=r"\sQuestion: Do not provide any explanation\.",
        max_new_tokens=50,
    ),
    _Kind(
        name="questions",
        before=r"The following are given documents\.\s+",
        after=r"\s+Answer the question based on the given documents\.",
        max_new_tokens=32,
        metric="string_match_part",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Ruler(PublishedTask):
    """Questions of RULER (arXiv:2404.06654), as its scripts write them.

    A line has ``input`` (the whole prompt), ``outputs`` (the reference answers) and perhaps
    ``answer_prefix``, which follows it. The kind is told by the words of the prompt. The documents
    of its question answering are the documents here; other contexts are one text, which is cut
    into passages (20 if `documents` does not say otherwise). A document is the gold one if it
    alone holds the answer; questions for several needles or chains of variables have none.

    As the file has them, prompts are the file's, but for one space or line end before the question
    and between passages of a context without lines. Moved documents get the ranks of their new
    positions. ``input`` without a chat template is expected (RULER's ``base``): the tokenizer's is
    put around it here, where it has one, with `answer_prefix` in the user's turn.

    Score: the share of `outputs` that the answer contains, in any case (``string_match_all``); of
    question answering, whether it contains one (``string_match_part``).
    """

    name: ClassVar[str] = "ruler"
    version: ClassVar[int] = 1
    title: ClassVar[str] = "RULER"
    source: ClassVar[str] = "NVIDIA/RULER (Apache-2.0)"
    metrics: ClassVar[tuple[str, ...]] = ("string_match_all",)
    max_new_tokens: ClassVar[int] = 128

    def _set_kind(self, line: str, entry: dict[str, Any]) -> None:
        kind, *_ = _parts(line, get_field(entry, "input", str, line))
        self._set(
            title=f"RULER ({kind.name})",
            metrics=(kind.metric,),
            fixed_length=kind.metric == "string_match_all",
            max_new_tokens=kind.max_new_tokens,
            # One of several reference answers can be measured, several that are asked for cannot.
            by_likelihood=kind.metric == "string_match_part"
            or len(get_field(entry, "outputs", list, line)) == 1,
        )

    def _items(self, number: int, line: str, entry: dict[str, Any]) -> Iterable[Item]:
        kind, prefix, context, suffix = _parts(line, get_field(entry, "input", str, line))
        answers = as_answers(get_field(entry, "outputs", list, line), f"{line}: 'outputs'")
        if self.title != f"RULER ({kind.name})":
            raise EvaluationDataError(
                f"{line}: 'input' is of another kind ({kind.name}) than the first line's. Give "
                "each of RULER's tasks a file of its own, as its scripts write them."
            )
        answer_prefix = entry.get("answer_prefix") or ""
        if not isinstance(answer_prefix, str):
            get_field(entry, "answer_prefix", str, line)  # raises
        if kind.metric == "string_match_part":
            documents, separator = _ranked_documents(line, context), "\n\n"
        else:
            passages, separator = cut_passages(context, self.documents or _PASSAGES, line)
            documents = [Document(passage) for passage in passages]
        gold = one_holding(documents, answers)
        if kind.metric == "string_match_all" and len(answers) > 1:
            gold = None
        yield published_item(
            number,
            suffix.strip(),
            answers,
            documents,
            gold,
            prefix=prefix,
            suffix=suffix.removeprefix(separator) + answer_prefix,
            separator=separator,
            ranked=kind.metric == "string_match_part",
        )

    def prompt(self, item: Item, condition: Condition) -> ContextPrompt:
        prompt = super().prompt(item, condition)
        if not item.details["ranked"]:
            return prompt
        return prompt.with_documents(
            replace(document, text=f"Document {rank}:\n{document.text}")
            for rank, document in enumerate(prompt.documents, start=1)
        )


def _parts(line: str, prompt: str) -> tuple[_Kind, str, str, str]:
    """The kind of a prompt, and its text before the context, the context, and the text after."""
    for kind in _KINDS:
        # The last ones: an example with the same words may stand before.
        ends = [match.start() for match in re.finditer(kind.after, prompt)]
        starts = [match.end() for match in re.finditer(kind.before, prompt, re.DOTALL)]
        if ends and starts and starts[-1] < ends[-1]:
            context = prompt[starts[-1] : ends[-1]]
            start = starts[-1] + len(context) - len(context.lstrip())
            end = start + len(context.strip())
            return kind, prompt[:start], prompt[start:end], prompt[end:]
    raise EvaluationDataError(
        f"{line}: 'input' has the words of none of RULER's tasks (niah, variable_tracking, "
        "common_words_extraction, freq_words_extraction, qa) around a context. Prompts of other "
        "templates cannot be told apart: write lines of your own questions instead."
    )


def _ranked_documents(line: str, context: str) -> list[Document]:
    """Documents between lines "Document 1:", "Document 2:" and so on, without these."""
    starts: list[re.Match[str]] = []
    for match in _RANKED.finditer(context):
        # Other numbers are text of a document.
        if int(match[1]) == len(starts) + 1:
            starts.append(match)
    ends = [match.start() for match in starts[1:]] + [len(context)]
    if len(starts) < 2 or starts[0].start():
        raise EvaluationDataError(
            f"{line}: 'input' should have documents after lines 'Document 1:', 'Document 2:' and "
            f"so on, with a blank line between them; it has {len(starts)}."
        )
    return [
        Document(context[match.end() : end], id=match[1])
        for match, end in zip(starts, ends, strict=True)
    ]
