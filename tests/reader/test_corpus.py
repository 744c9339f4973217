"""The demo corpus in ``examples/corpus`` is what the generator writes."""

from __future__ import annotations

import json
from pathlib import Path

from rag_middle.reader.corpus import demo_corpus, write_corpus

SHIPPED = Path(__file__).parents[2] / "examples" / "corpus"


def test_the_shipped_corpus_is_the_generated_one(tmp_path):
    write_corpus(tmp_path)
    written = {p.relative_to(tmp_path): p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    shipped = {p.relative_to(SHIPPED): p.read_bytes() for p in SHIPPED.rglob("*") if p.is_file()}
    assert written == shipped


def test_it_has_400_pages_and_400_questions_whose_page_holds_the_answer():
    entries, _ = demo_corpus()
    lines = (SHIPPED / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    questions = [json.loads(line) for line in lines]
    assert len(entries) == 400
    assert len(questions) == 400
    assert len({question["title"] for question in questions}) == 400
    for question in questions:
        page = (SHIPPED / question["source"]).read_text(encoding="utf-8")
        assert question["title"] in page
        assert question["answers"][0] in page
