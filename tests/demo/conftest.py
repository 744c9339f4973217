"""A small corpus, a tiny random model that reads it, and results that are made up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from transformers import LlamaConfig

from rag_middle.answering import DEFAULT_TEMPLATE
from rag_middle.demo import Demonstration, Example, Reply, SavedCorpus
from rag_middle.demo.questions import CITED, CorpusTask
from rag_middle.documents import Document
from rag_middle.evaluation import (
    Item,
    Measurement,
    Record,
    Results,
    labelled_methods,
    position,
)
from rag_middle.reader.corpus import demo_corpus
from tests.tiny_models import build, tiny
from tests.tokenizers import CHATML, byte_level_bpe

PAGES = 16
POSITIONS = (0, 2, 4)

Make = Callable[..., Demonstration]


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> SavedCorpus:
    """The first pages of the demonstration, and the questions that they answer."""
    entries, questions = demo_corpus()
    few = {entry.title: entry for entry in entries[:PAGES]}
    pages = tmp_path_factory.mktemp("corpus") / "pages"
    pages.mkdir()
    sources = {question.title: question.source for question in questions}
    for title, entry in few.items():
        name = sources.get(title, f"{title}.md")
        (pages / name).write_text(f"# {title}\n\n{entry.body}\n")
    return SavedCorpus(
        pages=pages,
        questions=tuple(question for question in questions if question.title in few),
        stated={
            title: frozenset(fact.attribute.key for fact in entry.facts)
            for title, entry in few.items()
        },
    )


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model on disk."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = byte_level_bpe(chat_template=CHATML)
    config = tiny(LlamaConfig, vocab_size=len(tokenizer), max_position_embeddings=2048)
    build("demo", config, "sdpa").save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def make() -> Make:
    """``make({"none": [1.0, 0.5, 0.5], "pine": [...]})``: a demonstration with these figures.

    The accuracy at each of three positions, of 100 questions. An accuracy of 0.5 means that the
    first 50 were answered.
    """
    return made_up


def made_up(
    accuracies: Mapping[str, Sequence[float]],
    *,
    questions: int = 100,
    replies: Mapping[str, Sequence[str]] | None = None,
    **facts: object,
) -> Demonstration:
    items = tuple(
        Item(
            id=str(number),
            question=f"Question {number}?",
            answers=("yes",),
            gold=Document("yes", title="Page"),
            others=tuple(Document(f"no {other}") for other in range(4)),
            details={"title": "Page", "attribute": "a"},
        )
        for number in range(questions)
    )
    records = {
        (label, position(index).name, item.id): Record(
            method=label,
            condition=position(index).name,
            item=item.id,
            scores={"answer_stated": float(number < accuracy * questions), CITED: 1.0},
            answer="yes" if number < accuracy * questions else "no",
            prompt_tokens=10,
            applied=True,
        )
        for label, by_position in accuracies.items()
        for index, accuracy in zip(POSITIONS, by_position, strict=True)
        for number, item in enumerate(items)
    }
    results = Results(
        task=CorpusTask(questions=items, documents=5, template=DEFAULT_TEMPLATE),
        measurement=Measurement(positions=POSITIONS, limit=questions),
        methods=labelled_methods(list(accuracies)),
        items=items,
        records=records,
        model={"dtype": "float32"},
        software={"torch": "2"},
    )
    written = replies or dict.fromkeys(accuracies, ("yes", "yes", "no", "no"))
    example = Example(
        question="Is it <so>?",
        answer="yes",
        page="Page",
        positions=(0, 4, 2, 3),
        documents=5,
        replies={
            label: tuple(Reply(text=text, right=text == "yes", cited=False) for text in texts)
            for label, texts in written.items()
        },
    )
    defaults: dict[str, object] = {
        "examples": (example,),
        "passed_over": 1,
        "model": "a model",
        "threads": 1,
        "pages": 16,
        "missed": 3,
        "chance": 0.25,
        "left_out": {},
        "seconds": {"prepare": 1.0, "examples": 2.0, "measure": 3.0},
    }
    return Demonstration.of(results, **{**defaults, **facts})
