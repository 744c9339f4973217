"""Questions, prompts and scores of every task."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from rag_middle import retrieval
from rag_middle.documents import Document
from rag_middle.errors import ConfigError, FileFormatError
from rag_middle.evaluation.conditions import (
    AS_GIVEN,
    CLOSED_BOOK,
    GOLD_ONLY,
    arranged_documents,
    order,
    position,
    spread_positions,
)
from rag_middle.evaluation.metrics import METRICS, normalized
from rag_middle.evaluation.tasks import TASKS, Task, make_task, task_for_file
from rag_middle.evaluation.tasks.data_files import read_entries
from tests.reader.questions import write_lines
from tests.retrieval.embedding import HashingEmbedder

DATA = Path(__file__).parent / "data"
NQ = DATA / "nq_open_gold.jsonl"
OWN = {
    "question": "Which river?",
    "answers": ["Loire"],
    "gold": {"title": "Nantes", "text": "Nantes lies on the Loire."},
    "distractors": ["Lyon lies on the Rhône.", "Rome lies on the Tiber."],
}


def keeps_the_contract(task: Task) -> None:
    """Assert what `Task` promises, of a task with at least one question."""
    assert TASKS.get(task.name) is type(task)
    assert task.version >= 1
    assert task.provenance
    assert set(task.metrics) <= set(METRICS)
    [first] = task.items(1, 0)
    again, *_ = task.items(2, 0)
    assert first == again  # a question does not depend on how many are asked
    conditions = [position(0), *task.controls] if task.num_positions else [AS_GIVEN]
    for condition in conditions:
        assert task.prompt(first, condition).text
        assert task.target(first, condition)
        best = {name: 1.0 if METRICS[name].share else 0.0 for name in task.metrics}
        assert task.scores(first, condition, first.answers[0]) == pytest.approx(best)
        wrong = task.scores(first, condition, "?")
        assert all(wrong[name] < best[name] for name in best)
    if task.num_positions:
        assert len(first.documents) == task.num_positions
        assert first.documents[first.gold_position] is first.gold
    json.dumps(task.to_dict())


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("own_questions", {}),
        ("multi_document_qa", {"data": NQ, "documents": 5}),
        ("key_value_retrieval", {"keys": 8}),
    ],
)
def test_every_task_keeps_the_contract(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    own = {"data": write_lines(tmp_path / "own.jsonl", OWN)} if name == "own_questions" else {}
    keeps_the_contract(make_task(name, {**options, **own}))


# -- conditions -----------------------------------------------------------------------------------


def test_conditions_arrange_documents_repeatably() -> None:
    task = make_task("key_value_retrieval", {"keys": 5})
    [item] = task.items(1, 0)
    for index in range(5):
        documents = arranged_documents(item, position(index))
        assert documents[index] is item.gold
        assert tuple(d for d in documents if d is not item.gold) == item.others
    assert arranged_documents(item, GOLD_ONLY) == (item.gold,)
    assert arranged_documents(item, CLOSED_BOOK) == ()
    assert arranged_documents(item, AS_GIVEN) == item.documents
    first, second = (arranged_documents(item, order(index)) for index in (0, 1))
    assert first == arranged_documents(item, order(0))
    assert first != second
    assert set(first) == set(second) == set(item.documents)
    assert spread_positions(20, 5) == (0, 4, 9, 14, 19)  # as in the benchmark
    assert spread_positions(3, 5) == (0, 1, 2)
    with pytest.raises(ConfigError, match="at least two"):
        spread_positions(1, 5)


# -- multi-document question answering and own questions ------------------------------------------


def test_random_distractors_hold_no_answer() -> None:
    task = make_task("multi_document_qa", {"data": NQ, "documents": 10})
    for item in task.items(None, 0):
        assert len(item.documents) == 10
        assert len({document.text for document in item.documents}) == 10
        for other in item.others:
            assert not any(normalized(a) in normalized(other.render()) for a in item.answers)


def test_with_ranks_the_prompt_is_the_benchmarks(tmp_path: Path) -> None:
    contexts = [{"title": title, "text": f"{title}.", "isgold": title == "B"} for title in "AB"]
    line = {"question": "Which?", "answers": ["B"], "ctxs": contexts}
    path = write_lines(tmp_path / "nq.jsonl", line)
    task = make_task("multi_document_qa", {"data": path, "ranks": True})
    [item] = task.items(None, 0)
    assert task.prompt(item, position(0)).text == (
        "Write a high-quality answer for the given question using only the provided search "
        "results (some of which might be irrelevant).\n\n"
        "Document [1](Title: B) B.\nDocument [2](Title: A) A.\n\n"
        "Question: Which?\nAnswer:"
    )
    assert "not the benchmark's" not in task.provenance
    assert "not the benchmark's" in make_task("multi_document_qa", {"data": NQ}).provenance


def test_the_first_line_of_an_answer_counts_as_in_the_benchmark() -> None:
    options = {"data": NQ, "documents": 3}
    task = make_task("multi_document_qa", options)
    [item] = task.items(1, 0)
    copied = f"\nNobody.\n{item.answers[0]} is in the first document."
    assert task.scores(item, AS_GIVEN, copied)["best_subspan_em"] == 0
    assert task.scores(item, AS_GIVEN, f"\n {item.answers[0]}\nor not")["best_subspan_em"] == 1
    whole = make_task("multi_document_qa", {**options, "whole_answer": True})
    assert whole.scores(item, AS_GIVEN, copied)["best_subspan_em"] == 1


def test_hard_distractors_are_those_most_like_the_question(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrieval, "SentenceTransformerEmbedder", HashingEmbedder)
    options = {"data": NQ, "documents": 4}
    hard = make_task("multi_document_qa", {**options, "distractors": "hard"}).items(3, 0)
    drawn = make_task("multi_document_qa", options).items(3, 0)
    embedder = HashingEmbedder()

    def alike(question: str, documents: tuple[Document, ...]) -> float:
        [asked] = embedder.embed([question])
        return float((embedder.embed([d.text for d in documents]) @ asked).mean())

    for one, other in zip(hard, drawn, strict=True):
        assert alike(one.question, one.others) > alike(other.question, other.others)


def test_own_questions_take_their_documents_in_three_forms(tmp_path: Path) -> None:
    lines = (
        OWN,
        {
            "question": "q2",
            "answer": "Tiber",
            "documents": ["Lyon lies on the Rhône.", "Rome lies on the Tiber.", "No river."],
            "gold": 1,
        },
        {"question": "q3", "answers": ["Seine"], "title": "Paris", "text": "It is on the Seine."},
    )
    task = make_task("own_questions", {"data": write_lines(tmp_path / "own.jsonl", *lines)})
    assert task.num_positions == 3
    first, second, third = task.items(None, 0)
    assert first.gold == Document("Nantes lies on the Loire.", title="Nantes")
    assert [document.text for document in first.others] == OWN["distractors"]
    assert (second.gold, second.gold_position) == (Document("Rome lies on the Tiber."), 1)
    # The third line brings no others: they are drawn from the other lines' gold documents.
    assert set(third.others) == {first.gold, second.gold}


def test_documents_that_repeat_the_gold_one_are_left_out(tmp_path: Path) -> None:
    answers = {"question": "q", "answers": ["Loire"]}
    gold, tiber, rhone = "Nantes lies on the Loire.", "Rome: Tiber.", "Lyon: Rhône."
    title = {"title": "Nantes", "text": " nantes lies\non the Loire. "}
    lines = (
        {**answers, "gold": gold, "distractors": [gold, tiber, title, rhone]},
        {**answers, "question": "q2", "documents": [gold, tiber, gold, rhone], "gold": 2},
    )
    task = make_task("own_questions", {"data": write_lines(tmp_path / "own.jsonl", *lines)})
    assert task.num_positions == 3
    for item, place in zip(task.items(None, 0), (0, 1), strict=True):
        assert (item.gold, item.gold_position) == (Document(gold), place)
        assert [document.text for document in item.others] == [tiber, rhone]


# -- what is wrong is said ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("own_questions", {**OWN, "answers": []}, r"data\.jsonl:1.*at least one text"),
        ("own_questions", {"question": "q", "answer": "a"}, r"data\.jsonl:1.*names no gold"),
        ("own_questions", {**OWN, "gold": 3}, r"data\.jsonl:1.*a document should be"),
        ("own_questions", {**OWN, "documents": ["a", "b"], "gold": [0, 1]}, r"got \[0, 1\]"),
        ("multi_document_qa", {"question": "q", "answers": ["a"], "ctxs": []}, "'isgold'"),
        ("key_value_retrieval", {"key": "a"}, "no field 'ordered_kv_records'"),
        ("own_questions", b"\xff\xfe", "can't decode"),
        ("own_questions", b"{", "Expecting property name"),
        ("own_questions", b"", "is empty"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(
    tmp_path: Path, name: str, content: Any, message: str
) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    with pytest.raises(FileFormatError, match=message):
        make_task(name, {"data": path}).items(None, 0)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("key_value_retrieval", {"keys": 1}, "keys"),
        ("own_questions", {"document": 3}, "Did you mean 'documents'"),
        ("key_value_retrieval", {"identifier_characters": 99}, "at most 36"),
        ("own_questions", {"data": NQ, "distractors": "near"}, "near"),
    ],
)
def test_a_task_checks_its_options(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_task(name, options)


def test_the_format_of_a_file_says_its_task(tmp_path: Path) -> None:
    assert task_for_file(DATA / "kv_75_keys.jsonl").name == "key_value_retrieval"
    assert task_for_file(NQ, documents=4).num_positions == 4
    # A title and a text are anybody's: no instruction of a benchmark.
    assert task_for_file(NQ).name == "own_questions"
    assert task_for_file(write_lines(tmp_path / "own.jsonl", OWN)).name == "own_questions"
    with pytest.raises(FileFormatError, match="none of the known formats"):
        task_for_file(write_lines(tmp_path / "x.jsonl", {"a": 1}))


def test_a_changed_file_makes_another_task_and_a_moved_one_does_not(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "own.jsonl", OWN)
    before = make_task("own_questions", {"data": path}).to_dict()
    (tmp_path / "elsewhere").mkdir()
    moved = write_lines(tmp_path / "elsewhere" / "own.jsonl", OWN)
    assert make_task("own_questions", {"data": moved}).to_dict() == before
    write_lines(path, {**OWN, "answers": ["Rhône"]})
    assert make_task("own_questions", {"data": path}).to_dict() != before


def test_rows_of_other_formats_are_read_as_lines_are(tmp_path: Path) -> None:
    row = {"question": "Where?", "answer": "Lyon", "text": "Lyon."}
    (tmp_path / "a.csv").write_text("question,answer,text\nWhere?,Lyon,Lyon.\n")
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(json.dumps([row]).encode()))
    assert [
        entry for name in ("a.csv", "a.jsonl.gz") for _, entry in read_entries(tmp_path / name)
    ] == [row, row]
    parquet = pytest.importorskip("pyarrow.parquet")
    pyarrow = pytest.importorskip("pyarrow")
    parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "a.parquet")
    assert [entry for _, entry in read_entries(tmp_path / "a.parquet")] == [row]
    (tmp_path / "torn.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(FileFormatError, match=r"torn\.parquet.*cannot be read after"):
        task_for_file(tmp_path / "torn.parquet")
