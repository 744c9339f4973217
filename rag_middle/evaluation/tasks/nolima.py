"""NoLiMa: a needle that shares no words with its question, in a book."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

from rag_middle.documents import Document
from rag_middle.errors import EvaluationConfigError, EvaluationDataError
from rag_middle.evaluation.conditions import Item
from rag_middle.evaluation.tasks.base import require_whole
from rag_middle.evaluation.tasks.data_files import as_answers, get_field, read_text
from rag_middle.evaluation.tasks.published import PublishedTask, cut_passages, published_item

__all__ = ["NoLiMa"]

_DEPTHS = 26  # of the needle, from first to last, in the benchmark's run configurations
_TEMPLATE = (
    "Below is a part of a book.\n\n{haystack}\n\nAnswer a question about it. The book may not "
    "state the answer in so many words: infer it where that is needed.\n\n"
    "Question: {question}\n\nGive the answer only, without reasons."
)


@dataclass(frozen=True, kw_only=True)
class NoLiMa(PublishedTask):
    """Questions of NoLiMa (arXiv:2502.05167), from a needle set and the books beside it.

    An entry of ``needlesets/*.json`` has ``id``, ``needle``, ``questions`` (by kind), ``tests``
    with ``input_args`` and perhaps ``gold_answers``, and perhaps ``character_set``,
    ``distractors``, ``system_prompt`` and ``task_template``. Every question of every test is asked
    once per book. The needle is the gold document, a line of its own between passages of the first
    `words` words of the book, so that position 0 is its depth 0 % and the last one 100 %; 26
    documents have the benchmark's depths.

    Differs from the benchmark: lengths are counted in words and not in GPT-4o's tokens; a question
    has one ``{CHAR}`` at all depths, drawn by test and book, and not one each; a distractor
    sentence stands in a passage that is drawn, whatever its distance from the needle; where there
    is no ``task_template``, the prompt is in this package's words.

    Score: ``answer_contained``, the benchmark's ``contains``: the answer holds the character, or
    one of ``gold_answers``, letter by letter.

    Attributes:
        haystack: a text file, or a folder of such; None for ``haystack/rand_shuffle`` beside the
            needle set's folder, where the benchmark's download puts them.
        words: of the book in a prompt.
    """

    name: ClassVar[str] = "nolima"
    version: ClassVar[int] = 1
    title: ClassVar[str] = "NoLiMa"
    source: ClassVar[str] = "adobe-research/NoLiMa (Adobe Research License, non-commercial)"
    metrics: ClassVar[tuple[str, ...]] = ("answer_contained",)
    max_new_tokens: ClassVar[int] = 192
    fixed_length: ClassVar[bool] = True

    haystack: str | Path | None = None
    words: int = 750

    def __post_init__(self) -> None:
        require_whole(self.name, 1, words=self.words)
        if self.moved is False:
            raise EvaluationConfigError(
                f"{self.name}: needles have no position of their own that questions could be asked "
                "with as they are. Leave 'moved' out."
            )
        if self.haystack is None:  # known before records say which books were read
            self._set(haystack=Path(self.data).parent.parent / "haystack" / "rand_shuffle")
        super().__post_init__()

    @cached_property
    def _all(self) -> tuple[Item, ...]:
        # All tests in one book first: a limit should leave out books, and not tests.
        return tuple(sorted(super()._all, key=lambda item: str(item.details["book"])))

    @cached_property
    def _books(self) -> dict[str, tuple[list[str], str]]:
        """By name, the passages between which needles go, and what stands between them."""
        path = Path(str(self.haystack))
        files = [path] if path.is_file() else sorted(path.glob("*.txt"))
        if not files:
            raise EvaluationDataError(
                f"{self.name}: there is no book (.txt) in {str(path)!r}. Pass the benchmark's "
                "books, a file or a folder, as 'haystack'."
            )
        count = (self.documents or _DEPTHS) - 1
        books = {}
        for file in files:
            text = _first_words(read_text(file), self.words)
            books[file.stem] = cut_passages(text, count, file.name) if count > 1 else ([text], "\n")
        return books

    def _items(self, number: int, line: str, entry: dict[str, Any]) -> Iterable[Item]:
        needle = get_field(entry, "needle", str, line)
        questions = _texts(line, entry, "questions")
        distractors = _texts(line, entry, "distractors") if entry.get("distractors") else {}
        tests = get_field(entry, "tests", dict, line)
        people: tuple[str, ...] = ()
        if "{CHAR}" in needle:
            listed = get_field(entry, "character_set", list, line)
            people = as_answers(listed, f"{line}: 'character_set'")
        before, after = _template(line, entry)
        for kind, test, book in product(questions, tests, self._books):
            name = f"{entry.get('id', number)}_{test}_{kind}_{book}"
            rng = random.Random(name)
            where = f"{line}: test {test!r}"
            values = _values(where, tests[test])
            if people:
                values["{CHAR}"] = rng.choice(people)
                answers: tuple[str, ...] = (values["{CHAR}"],)
            else:
                answers = as_answers(tests[test].get("gold_answers"), f"{where}: 'gold_answers'")
            passages, separator = self._books[book]
            others = list(passages)
            if kind in distractors:
                hint = _filled(distractors[kind], values)
                others[rng.randrange(len(others))] += separator + hint
            question = _filled(questions[kind], values)
            item = published_item(
                number,
                question,
                answers,
                [Document(text) for text in (_filled(needle, values), *others)],
                0,
                prefix=before,
                suffix=after.replace("{question}", question).removeprefix(separator),
                separator=separator,
                book=book,
            )
            yield replace(item, id=name)


def _texts(line: str, entry: Mapping[str, Any], name: str) -> dict[str, str]:
    """The field `name`: texts by kind of question."""
    texts = get_field(entry, name, dict, line)
    if not all(isinstance(text, str) for text in texts.values()):
        raise EvaluationDataError(f"{line}: {name!r} should be texts by kind of question.")
    return dict(texts)


def _template(line: str, entry: Mapping[str, Any]) -> tuple[str, str]:
    """The prompt before and after the book."""
    texts = {name: entry.get(name) or "" for name in ("system_prompt", "task_template")}
    for name, text in texts.items():
        if not isinstance(text, str):
            get_field(entry, name, str, line)  # raises
    before, has_haystack, after = (texts["task_template"] or _TEMPLATE).partition("{haystack}")
    if not has_haystack or "{question}" not in after:
        raise EvaluationDataError(
            f"{line}: 'task_template' should hold {{haystack}} and, after it, {{question}}."
        )
    system = texts["system_prompt"]
    return f"{system}\n\n{before}" if system else before, after


def _values(where: str, test: object) -> dict[str, str]:
    """What replaces ``{1}``, ``{2}`` and so on."""
    if not isinstance(test, dict):
        raise EvaluationDataError(f"{where} should be an object, got {type(test).__name__}.")
    arguments = get_field(test, "input_args", list, where)
    if not all(isinstance(argument, str) for argument in arguments):
        raise EvaluationDataError(f"{where}: 'input_args' should be texts, got {arguments!r}.")
    return {f"{{{number}}}": argument for number, argument in enumerate(arguments, start=1)}


def _filled(text: str, values: Mapping[str, str]) -> str:
    for placeholder, value in values.items():
        text = text.replace(placeholder, value)
    return text


def _first_words(text: str, words: int) -> str:
    """The text up to the end of so many words, with its lines."""
    ends = [match.end() for match, _ in zip(re.finditer(r"\S+", text), range(words), strict=False)]
    return text[: ends[-1] if ends else 0].strip()
