"""L-Eval's closed-ended datasets (arXiv:2307.11088), scored by exact match."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from rag_middle import ContextPrompt, Document, FileFormatError
from rag_middle.evaluation import Condition, Item, arranged_documents, get_field
from rag_middle_reproduce.tasks.file_task import ContextTask, choose

__all__ = ["LEval"]

_EXAM = (
    "Now you are given a very long document. Please follow the instruction based on this document. "
    "For multi-choice questions, there "
)
_LETTER = " Please only provide the letter corresponding to the answer (like A or {several})"


def _letters(answer: str, right: str) -> float:
    """All right letters and no other: 1; some of them and no wrong one: 0.25."""
    begin = re.match(r"\W*([A-D]+)(?![A-Za-z])", answer)
    stated = set(begin[1]) if begin else set(re.findall(r"(?<![A-Za-z])[A-D](?=[\s.)])", answer))
    wanted = set(re.sub(r"[^A-D]", "", right.split()[0]))
    if stated == wanted:
        return 1.0
    return 0.25 if stated and stated < wanted else 0.0


def _letter(answer: str, right: str) -> float:
    stated = re.search(r"[A-D]", answer)
    return float(stated is not None and stated[0] in right.split()[0])


def _number(answer: str, right: str) -> float:
    """The number after "The answer is", else the last one before an empty line."""
    said = re.search(r"The answer is (\S+)", answer)
    words = [said[1]] if said else answer.partition("\n\n")[0].split(" ")
    digits = [re.sub(r"\D", "", word.partition(".")[0]) for word in words]
    return float(next((d for d in reversed(digits) if d), None) == re.sub(r"\D", "", right))


def _contained(answer: str, right: str) -> float:
    squeezed = (re.sub(r"\s", "", text.lower().rstrip(" .")) for text in (right, answer))
    wanted, stated = squeezed
    return float(wanted in stated)


def _loyal(answer: str, right: str) -> float:
    """Whether the answer follows the document; what it says of the real world is not asked."""
    stated = re.search(r"true|false", answer.lower())
    return float(stated is not None and right.lower().startswith(stated[0]))


@dataclass(frozen=True, slots=True)
class _Dataset:
    instruction: str
    score: Callable[[str, str], float]


_SINGLE = (
    f"{_EXAM}is only a sinlge correct option.{_LETTER.replace('{several}', 'B')} when answering. "
    "For other questions, please directly give the concise and accurate answer. "
)
_DATASETS = {
    "coursera": _Dataset(
        f"{_EXAM}could be a sinlge correct option or multiple correct options."
        f"{_LETTER.replace('{several}', 'AB')} when answering. ",
        _letters,
    ),
    "quality": _Dataset(_SINGLE, _letter),
    "tpo": _Dataset(_SINGLE, _letter),
    "gsm100": _Dataset(
        "Given several question answer pairs, you need to follow a similar format to answer the "
        "last question. Make sure the response is end with The answer is _ . ",
        _number,
    ),
    "topic_retrieval_longchat": _Dataset(
        "Below is a record of our previous conversation on many different topics. You are the "
        "ASSISTANT, and I am the USER. At the beginning of each topic, the USER will say 'I would "
        "like to discuss the topic of <TOPIC>'. Memorize each <TOPIC>. At the end of the record, I "
        "will ask you to retrieve the first/second/third topic names. Now the record start. ",
        _contained,
    ),
    "sci_fi": _Dataset(
        "Now you are given a scientific fiction. I will ask you some questions and the answer "
        'should be "True" or "False". Notice that you should answer the question based on the '
        "evidence in the document instead of your background knowledge.",
        _loyal,
    ),
}


@dataclass(frozen=True, kw_only=True)
class LEval(ContextTask):
    """One closed-ended dataset of L-Eval.

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
    metrics: ClassVar[tuple[str, ...]] = ("accuracy",)
    max_new_tokens: ClassVar[int] = 512

    dataset: str

    def __post_init__(self) -> None:
        super().__post_init__()
        choose(self.name, "dataset", self.dataset, _DATASETS)

    def items(self, limit: int | None, seed: int) -> list[Item]:
        items: list[Item] = []
        for line, content in self._lines(None):
            document = Document(get_field(content, "input", str, line))
            instructions = get_field(content, "instructions", list, line)
            outputs = get_field(content, "outputs", list, line)
            if len(instructions) != len(outputs):
                raise FileFormatError(
                    f"{line} has {len(instructions)} instructions and {len(outputs)} outputs: one "
                    "output belongs to each instruction."
                )
            for question, answer in zip(instructions, outputs, strict=True):
                items.append(
                    Item(
                        id=f"{len(items)}",
                        question=str(question),
                        answers=(str(answer),),
                        others=(document,),
                    )
                )
        return items[:limit]

    def prompt(self, item: Item, condition: Condition) -> ContextPrompt:
        before, after = f"{_DATASETS[self.dataset].instruction}\n\n", f"\n\n{item.question}"
        if self.dataset not in ("gsm100", "topic_retrieval_longchat"):
            before += "Document is as follows. "
            after = (
                f" \nQuestion: {item.question}.  Please directly give the answer without any "
                "additional output or explanation \nAnswer:"
            )
        return ContextPrompt(before, arranged_documents(item, condition), after, separator="")

    def scores(self, item: Item, condition: Condition, answer: str) -> dict[str, float]:
        return {"accuracy": _DATASETS[self.dataset].score(answer.strip(), item.answers[0])}
