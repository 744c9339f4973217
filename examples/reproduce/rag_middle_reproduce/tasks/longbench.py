"""LongBench's English datasets with its prompts, lengths and metrics (arXiv:2308.14508)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from rag_middle import ContextPrompt, Document
from rag_middle.evaluation import (
    Condition,
    Item,
    arranged_documents,
    as_answers,
    get_field,
)
from rag_middle.evaluation.metrics import f1
from rag_middle_reproduce.tasks import metrics
from rag_middle_reproduce.tasks.file_task import ContextTask, choose

__all__ = ["LongBench"]

_PASSAGE = re.compile(r"(?m)^(?=Passage \d+:\n)")

_STORY = (
    "Answer the question asconcisely as you can, using a single phrase if possible. Do not provide "
    "any explanation."
)
_ARTICLE = (
    "as concisely as you can, using a single phrase or sentence if possible. If the question "
    'cannot be answered based on the information in the article, write "unanswerable". If the '
    'question is a yes/no question, answer "yes", "no", or "unanswerable". Do not provide any '
    "explanation."
)
_PASSAGES = (
    "Answer the question based on the given passages. Only give me the answer and do not output "
    "any other words."
)
_MULTI_DOCUMENT = (
    f"{_PASSAGES}\n\nThe following are given passages.\n{{context}}\n\n{_PASSAGES}\n\n"
    "Question: {input}\nAnswer:"
)
_COUNT = (
    "There are some paragraphs below sourced from Wikipedia. Some of them may be duplicates. "
    "Please carefully read these paragraphs and determine how many unique paragraphs there are "
    "after removing duplicates. In other words, how many non-repeating paragraphs are there in "
    "total?\n\n{context}\n\nPlease enter the final count of unique paragraphs after removing "
    "duplicates. The output format should only contain the number, such as 1, 2, 3, and so on."
    "\n\nThe final answer is: "
)


@dataclass(frozen=True, slots=True)
class _Dataset:
    """How a dataset is asked and scored: `prompt` holds ``{context}``, and mostly ``{input}``."""

    prompt: str
    new_tokens: int
    metric: str
    few_shot: bool = False


_DATASETS = {
    "narrativeqa": _Dataset(
        "You are given a story, which can be either a novel or a movie script, and a question. "
        f"{_STORY}\n\nStory: {{context}}\n\nNow, answer the question based on the story "
        f"{_STORY.removeprefix('Answer the question ')}\n\nQuestion: {{input}}\n\nAnswer:",
        128,
        "f1",
    ),
    "qasper": _Dataset(
        f"You are given a scientific article and a question. Answer the question {_ARTICLE}\n\n"
        "Article: {context}\n\n Answer the question based on the above article "
        f"{_ARTICLE}\n\nQuestion: {{input}}\n\nAnswer:",
        128,
        "f1",
    ),
    "multifieldqa_en": _Dataset(
        "Read the following text and answer briefly.\n\n{context}\n\nNow, answer the following "
        "question based on the above text, only give me the answer and do not output any other "
        "words.\n\nQuestion: {input}\nAnswer:",
        64,
        "f1",
    ),
    "hotpotqa": _Dataset(_MULTI_DOCUMENT, 32, "f1"),
    "2wikimqa": _Dataset(_MULTI_DOCUMENT, 32, "f1"),
    "musique": _Dataset(_MULTI_DOCUMENT, 32, "f1"),
    "gov_report": _Dataset(
        "You are given a report by a government agency. Write a one-page summary of the report."
        "\n\nReport:\n{context}\n\nNow, write a one-page summary of the report.\n\nSummary:",
        512,
        "rouge_l",
    ),
    "qmsum": _Dataset(
        "You are given a meeting transcript and a query containing a question or instruction. "
        "Answer the query in one or more sentences.\n\nTranscript:\n{context}\n\nNow, answer the "
        "query based on the above meeting transcript in one or more sentences.\n\nQuery: {input}"
        "\nAnswer:",
        512,
        "rouge_l",
    ),
    "multi_news": _Dataset(
        "You are given several news passages. Write a one-page summary of all news. \n\nNews:\n"
        "{context}\n\nNow, write a one-page summary of all the news.\n\nSummary:",
        512,
        "rouge_l",
    ),
    "trec": _Dataset(
        "Please determine the type of the question below. Here are some examples of questions."
        "\n\n{context}\n{input}",
        64,
        "classification",
        few_shot=True,
    ),
    "triviaqa": _Dataset(
        "Answer the question based on the given passage. Only give me the answer and do not output "
        "any other words. The following are some examples.\n\n{context}\n\n{input}",
        32,
        "f1",
        few_shot=True,
    ),
    "samsum": _Dataset(
        "Summarize the dialogue into a few short sentences. The following are some examples.\n\n"
        "{context}\n\n{input}",
        128,
        "rouge_l",
        few_shot=True,
    ),
    "passage_count": _Dataset(_COUNT, 32, "numbers_right"),
    "passage_retrieval_en": _Dataset(
        "Here are 30 paragraphs from Wikipedia, along with an abstract. Please determine which "
        "paragraph the abstract is from.\n\n{context}\n\nThe following is an abstract.\n\n{input}"
        "\n\nPlease enter the number of the paragraph that the abstract is from. The answer format "
        'must be like "Paragraph 1", "Paragraph 2", etc.\n\nThe answer is: ',
        32,
        "numbers_right",
    ),
    "lcc": _Dataset(
        "Please complete the code given below. \n{context}Next line of code:\n",
        64,
        "code_similarity",
    ),
    "repobench-p": _Dataset(
        "Please complete the code given below. \n{context}{input}Next line of code:\n",
        64,
        "code_similarity",
    ),
}


@dataclass(frozen=True, kw_only=True)
class LongBench(ContextTask):
    """One English dataset of LongBench: its prompt letter by letter, its length and its metric.

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

    def __post_init__(self) -> None:
        super().__post_init__()
        chosen = choose(self.name, "dataset", self.dataset, _DATASETS)
        self._set(metrics=(chosen.metric,), max_new_tokens=chosen.new_tokens)
        if self.dataset == "samsum":  # models go on with further dialogues
            self._set(stop=("\n",))

    def items(self, limit: int | None, seed: int) -> list[Item]:
        items = []
        lines = self._lines(limit, lambda content: content.get("dataset") == self.dataset)
        for index, (line, content) in enumerate(lines):
            context = get_field(content, "context", str, line)
            texts = [t for t in _PASSAGE.split(context) if t] if self.passages else [context]
            items.append(
                Item(
                    id=f"{index}",
                    question=get_field(content, "input", str, line),
                    answers=as_answers(content.get("answers"), line),
                    others=tuple(map(Document, texts)),
                    details={"classes": content.get("all_classes") or ()},
                )
            )
        return items

    def prompt(self, item: Item, condition: Condition) -> ContextPrompt:
        before, _, after = _DATASETS[self.dataset].prompt.partition("{context}")
        documents = arranged_documents(item, condition)
        return ContextPrompt(before, documents, after.replace("{input}", item.question), "")

    def scores(self, item: Item, condition: Condition, answer: str) -> dict[str, float]:
        chosen = _DATASETS[self.dataset]
        if chosen.few_shot:
            answer = answer.lstrip("\n").partition("\n")[0]
        score: dict[str, Callable[[str], float]] = {
            "f1": lambda right: f1(answer, [right]),
            "rouge_l": lambda right: metrics.rouge(answer, right)["rougeL"],
            "classification": lambda right: metrics.classification(
                answer, right, item.details["classes"]
            ),
            "numbers_right": lambda right: metrics.numbers_right(answer, right),
            "code_similarity": lambda right: metrics.code_similarity(answer, right),
        }
        return {chosen.metric: max(map(score[chosen.metric], item.answers))}
