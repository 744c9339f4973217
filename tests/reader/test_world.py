"""The invented documents are of the kind that the reader was trained on."""

import random

from rag_middle.evaluation import position
from rag_middle.generation import RagMiddleModel
from tests.reader import reader_path
from tests.reader.questions import InventedDocuments
from tests.reader.world import KINDS, draw_entries, ending_of


def test_sentences_name_their_subject_before_the_value_and_questions_name_it() -> None:
    for attribute in (attribute for kind in KINDS for attribute in kind):
        for sentence in attribute.sentences:
            assert 0 <= sentence.index("{name}") < sentence.index("{value}")
        assert all("{name}" in question for question in attribute.questions)


def test_last_words_tell_documents_apart_and_end_differently() -> None:
    entries = draw_entries(random.Random(5), 40)
    assert len({ending_of(entry.title) for entry in entries}) == 40
    many = draw_entries(random.Random(5), 120)
    assert len({entry.title.split()[-1] for entry in many}) == 120


def test_the_reader_answers_right() -> None:
    model, task = RagMiddleModel.from_pretrained(reader_path()), InventedDocuments(documents=5)
    prompts = [task.prompt(item, position(2)) for item in task.items(8, 0)]
    answers = [answer.text for answer in model.batch(prompts, max_new_tokens=24)]
    expected = [str(item.details["cited_answer"]) for item in task.items(8, 0)]
    assert sum(map(str.__eq__, answers, expected)) >= 7
