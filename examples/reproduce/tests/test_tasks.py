"""Questions, prompts and scores of the papers' tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rag_middle import EvaluationDataError
from rag_middle.evaluation import AS_GIVEN, make_task, position
from tests.evaluation.test_tasks import keeps_the_contract, written

pytest.importorskip("yaml", reason="needs pyyaml (extra eval)")
pytest.importorskip("rag_middle_reproduce")

PAIRS = {"prompt": "What is 2 + 2?", "chosen": "It is 4.", "rejected": "It is 5."}
CHOICES = {"question": "Which is a river?", "choices": ["Lyon", "Loire"], "answer": 1}
LONG = {
    "input": "Which river?",
    "context": "Passage 1:\nLyon has the Rhône.\n\nPassage 2:\nNantes has the Loire.\n",
    "answers": ["the Loire"],
    "dataset": "hotpotqa",
}
TIMELINE = {"context": "First b, then a.", "question": "1. a\n2. b", "answer": "2, 1"}


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("pairwise_judge", PAIRS),
        ("multiple_choice", CHOICES),
        ("long_context_qa", LONG),
        ("timeline_order", TIMELINE),
    ],
)
def test_every_task_keeps_the_contract(tmp_path: Path, name: str, line: dict[str, Any]) -> None:
    keeps_the_contract(make_task(name, {"data": written(tmp_path / "data.jsonl", line, line)}))


def test_an_answer_keeps_its_letter_in_both_orders(tmp_path: Path) -> None:
    task = make_task("pairwise_judge", {"data": written(tmp_path / "p.jsonl", *[PAIRS] * 20)})
    items = task.items(None, 0)
    assert {item.answers[0] for item in items} == {"A", "B"}
    for item in items:
        first, second = (task.prompt(item, position(at)).documents for at in (0, 1))
        assert first == second[::-1]
        assert item.gold is not None
        assert item.gold.text == f"Answer of assistant {item.answers[0]}:\nIt is 4."


@pytest.mark.parametrize(
    ("answer", "right"), [("A", 1), (" B.", 0), ("[[A]]", 1), ("Answer A is", 1), ("Neither", 0)]
)
def test_the_verdict_of_a_judge_is_found(tmp_path: Path, answer: str, right: int) -> None:
    task = make_task("pairwise_judge", {"data": written(tmp_path / "p.jsonl", *[PAIRS] * 9)})
    item = next(item for item in task.items(None, 0) if item.answers == ("A",))
    assert task.scores(item, position(0), answer) == {"accuracy": right}


def test_choices_are_lettered_after_examples(tmp_path: Path) -> None:
    shots = written(tmp_path / "shots.jsonl", {**CHOICES, "answer": "A"})
    task = make_task(
        "multiple_choice", {"data": written(tmp_path / "c.jsonl", CHOICES), "shots": shots}
    )
    [item] = task.items(None, 0)
    assert task.prompt(item, AS_GIVEN).text == (
        "Which is a river?\nA. Lyon\nB. Loire\nAnswer: A\n\n"
        "Which is a river?\nA. Lyon\nB. Loire\nAnswer:"
    )
    assert item.answers == ("B",)


def test_numbered_passages_become_documents(tmp_path: Path) -> None:
    path = written(tmp_path / "l.jsonl", LONG, {**LONG, "dataset": "narrativeqa"})
    task = make_task("long_context_qa", {"data": path, "dataset": "hotpotqa"})
    [item] = task.items(None, 0)
    assert [document.text for document in item.documents] == [
        "Lyon has the Rhône.",
        "Nantes has the Loire.",
    ]


@pytest.mark.parametrize(
    ("answer", "score"), [("3, 1, 2", 1.0), ("3, 2, 1", 1 / 3), ("3, 3, 2", 0.0), ("none", 0.0)]
)
def test_an_order_is_scored_by_its_right_numbers(tmp_path: Path, answer: str, score: float) -> None:
    path = written(tmp_path / "t.jsonl", {**TIMELINE, "answer": "3, 1, 2"})
    task = make_task("timeline_order", {"data": path})
    [item] = task.items(None, 0)
    assert task.scores(item, AS_GIVEN, answer) == {"accuracy": pytest.approx(score)}


def test_questions_of_other_kinds_are_left_out_of_timelines(tmp_path: Path) -> None:
    other = {"context": "c", "question": "q", "answer": "a", "task": "Computation"}
    wanted = {**TIMELINE, "task": "Timeline reorder"}
    task = make_task("timeline_order", {"data": written(tmp_path / "t.jsonl", other, wanted)})
    assert len(task.items(None, 0)) == 1


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("pairwise_judge", {"prompt": "p", "chosen": "c"}, "no field 'rejected'"),
        ("multiple_choice", {**CHOICES, "answer": 2}, "one of the letters AB"),
        ("timeline_order", {**TIMELINE, "answer": "later"}, "numbers of events"),
        ("long_context_qa", {**LONG, "context": 3}, "should be a str"),
    ],
)
def test_a_wrong_line_is_named(
    tmp_path: Path, name: str, line: dict[str, Any], message: str
) -> None:
    path = written(tmp_path / "data.jsonl", line)
    with pytest.raises(EvaluationDataError, match=rf"data\.jsonl:1.*{message}"):
        make_task(name, {"data": path}).items(None, 0)
