"""The demo corpus: Markdown pages about invented things, and questions about them.

``python -m rag_middle.reader.corpus FOLDER`` writes it; the same bytes every time.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rag_middle.reader.facts import Entry, draw_entries
from rag_middle.reader.kinds import KINDS

__all__ = ["CorpusQuestion", "demo_corpus", "write_corpus"]

PAGES_PER_KIND = 50
QUESTIONS = 400
PAGES = "pages"
QUESTIONS_FILE = "questions.jsonl"


@dataclass(frozen=True)
class CorpusQuestion:
    """A question with its answer and the page that has it.

    Attributes:
        question: the question.
        answers: the value; any one of them counts.
        title: title of the page that answers, its gold document.
        source: file name of that page.
        attribute: the kind of fact, such as ``town.mayor``.
    """

    question: str
    answers: tuple[str, ...]
    title: str
    source: str
    attribute: str


def demo_corpus() -> tuple[list[Entry], list[CorpusQuestion]]:
    """400 pages, 50 of each kind, with one fact each; and a question about each."""
    rng = random.Random("demo corpus")
    entries: list[Entry] = []
    taken: set[str] = set()
    for kind in KINDS:
        drawn = draw_entries(
            rng,
            "demo",
            PAGES_PER_KIND + 10,
            facts_each=(1,),
            same_attribute=False,
            kind=kind,
            related_names=0.05,
        )
        fresh = [entry for entry in drawn if _file_name(entry) not in taken][:PAGES_PER_KIND]
        taken |= {_file_name(entry) for entry in fresh}
        entries += fresh
    facts = [(entry, fact) for entry in entries for fact in entry.facts]
    questions = [
        CorpusQuestion(
            question=fact.question(rng),
            answers=(fact.value,),
            title=entry.title,
            source=_file_name(entry),
            attribute=fact.attribute.key,
        )
        for entry, fact in rng.sample(facts, QUESTIONS)
    ]
    return entries, questions


def write_corpus(folder: Path) -> None:
    """Write ``pages/*.md`` and ``questions.jsonl`` into ``folder``."""
    entries, questions = demo_corpus()
    pages = folder / PAGES
    pages.mkdir(parents=True, exist_ok=True)
    for entry in entries:
        page = f"# {entry.title}\n\n{entry.body}\n"
        (pages / _file_name(entry)).write_text(page, encoding="utf-8")
    lines = [
        json.dumps(
            {
                "question": question.question,
                "answers": list(question.answers),
                "title": question.title,
                "source": f"{PAGES}/{question.source}",
                "attribute": question.attribute,
            }
        )
        for question in questions
    ]
    (folder / QUESTIONS_FILE).write_text("\n".join(lines) + "\n", encoding="utf-8")


def _file_name(entry: Entry) -> str:
    return f"{entry.title.lower().replace(' ', '-')}.md"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    write_corpus(parser.parse_args(arguments).folder)


if __name__ == "__main__":
    main()
