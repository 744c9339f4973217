"""What becomes of a generation: sources, positions, citations."""

import json

from rag_middle.answering import DEFAULT_TEMPLATE, Answer, Source
from rag_middle.answering.results import AnswerRequest
from rag_middle.documents import Document
from rag_middle.generation import Generation, Timings, Usage

RETRIEVED = (
    Document("a", title="Lyon", id="same", metadata={"score": 0.9, "source": "l.pdf", "page": 2}),
    Document("b", title="Nantes", id="same", metadata={"score": 0.8, "source": "n.md"}),
    Document("c", title="Lyon", metadata={"other": object()}),
)
REQUEST = AnswerRequest(
    question="Where?", documents=RETRIEVED, template=DEFAULT_TEMPLATE, seconds=1.0
)


def _answer(text: str, sent: tuple[str, ...]) -> Answer:
    generation = Generation(
        text=text,
        token_ids=(1, 2, 3),
        finish_reason="stop",
        stop=None,
        usage=Usage(prompt_tokens=30, completion_tokens=3),
        timings=Timings(tokenize=0.1, wait=0.2, prefill=0.3, decode=0.4),
        method="pine",
        applied=True,
        documents=len(sent),
        document_ids=sent,
        dropped_documents=(),
        seed=None,
    )
    return REQUEST.answer(generation)


def test_documents_are_identified_by_their_index_whatever_their_ids() -> None:
    assert [document.id for document in REQUEST.prompt.documents] == ["0", "1", "2"]
    answer = _answer("", sent=("2", "0"))  # a method changed the order, the second did not fit
    assert [source.position for source in answer.sources] == [1, None, 0]
    assert [source.document for source in answer.sources] == list(RETRIEVED)
    assert answer.dropped == (answer.sources[1],)
    assert [document.text for document in answer.prompt.documents] == ["Lyon\nc", "Lyon\na"]
    assert [document.id for document in answer.prompt.documents] == [None, "same"]


def test_only_what_was_read_and_named_is_cited() -> None:
    answer = _answer(" (Lyon) On the Rhône, not (Nantes). ", sent=("0", "2"))
    assert answer.text == "(Lyon) On the Rhône, not (Nantes)."
    assert [source.cited for source in answer.sources] == [True, False, True]
    assert answer.cited == (answer.sources[0], answer.sources[2])
    assert _answer("Lyon.", sent=("0", "1", "2")).cited == ()


def test_times_begin_with_the_question() -> None:
    timings = _answer("", sent=("0",)).timings
    assert round(timings.time_to_first_token, 6) == 1.6
    assert round(timings.total, 6) == 2.0


def test_an_answer_is_json_whatever_the_documents_carry() -> None:
    described = json.loads(json.dumps(_answer("(Lyon) Yes.", sent=("0", "1")).to_dict()))
    assert described["sources"][0] == {
        "id": "same",
        "title": "Lyon",
        "path": "l.pdf",
        "page": 2,
        "heading": None,
        "score": 0.9,
        "position": 0,
        "cited": True,
        "text": "a",
    }
    assert described["sources"][2]["path"] is None
    assert described["dropped"] == [2]
    assert described["usage"]["total_tokens"] == 33
    assert described["timings"]["retrieve"] == 1.0
    assert (described["method"], described["applied"]) == ("pine", True)


def test_a_source_says_where_it_is_and_how_it_begins() -> None:
    part = {"source": "a.md", "first_line": 3, "last_line": 9, "heading": "Tax"}
    long = Source(document=Document("word " * 40, metadata=part), position=0)
    assert long.where == "a.md, lines 3-9"
    assert long.heading == "Tax"
    assert len(long.snippet) <= 90
    assert long.snippet.endswith("word…")
    one = {"source": "a.md", "first_line": 3, "last_line": 3}
    assert Source(document=Document("a\nb", metadata=one), position=0).where == "a.md, line 3"
    page = Source(document=Document("a\nb", metadata={"source": "b.pdf", "page": 2}), position=0)
    assert (page.where, page.snippet, page.heading) == ("b.pdf, page 2", "a b", None)
    assert Source(document=Document("a", id="7"), position=0).where == "7"
