"""At which positions questions are asked, what counts as right, and what tells two sets apart."""

from collections import Counter
from pathlib import Path

import pytest

from rag_middle.calibration import LayerSearch, draw_examples, make_search
from rag_middle.errors import ConfigError
from rag_middle.evaluation import MultiDocumentQA, task_for_file
from tests.reader.questions import InventedDocuments, write_lines


@pytest.mark.parametrize("weights", [(-1.0, 2.0), (0.0, 0.0), (1.0,), (float("nan"), 1.0)])
def test_weights_that_make_no_sense_are_refused(weights: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError, match="weights must be at least two numbers"):
        draw_examples(InventedDocuments(), "lpes", weights=weights, questions=5, held_out=2)


def test_every_question_is_asked_at_every_position_of_its_search() -> None:
    task = InventedDocuments(documents=20)
    wanted = {
        "lpes": {0: 0.2, 9: 0.3, 19: 0.5},
        "positional_hidden_states": dict.fromkeys((0, 4, 9, 14, 19), 1.0),
    }
    for search, weight_at in wanted.items():
        searched, held_out = draw_examples(task, search, questions=4, held_out=2)
        asked: dict[str, dict[int, float]] = {}
        for example in searched:
            asked.setdefault(example.question, {})[example.position] = example.weight
        assert list(asked.values()) == [weight_at] * 4
        assert Counter(example.position for example in held_out) == dict.fromkeys(
            (0, 4, 9, 14, 19), 2
        )
        assert {example.weight for example in held_out} == {1.0}
        assert not {example.question for example in searched} & {
            example.question for example in held_out
        }
        assert all(example.answer.startswith(" ") for example in searched)
        assert draw_examples(task, search, questions=4, held_out=2) == (searched, held_out)


def test_weights_of_coinciding_positions_add_up_and_positions_without_weight_are_left_out() -> None:
    def weight_at(documents: int, *weights: float) -> dict[int, float]:
        task = InventedDocuments(documents=documents)
        searched, _ = draw_examples(task, "lpes", questions=3, held_out=2, weights=weights)
        return {example.position: example.weight for example in searched}

    assert weight_at(2, 0.2, 0.3, 0.5) == {0: 0.5, 1: 0.5}
    assert weight_at(9, 1, 0, 3) == {0: 1, 8: 3}
    assert weight_at(9, 1, 2) == {0: 1, 8: 2}


def test_what_counts_as_right_is_the_tasks(tmp_path: Path) -> None:
    line = {
        "question": "Who?",
        "answers": ["Wilhelm Röntgen", "Röntgen"],
        "title": "T",
        "text": "R",
    }
    lines = [line | {"text": f"R {n}", "title": f"T{n}"} for n in range(12)]
    data = write_lines(tmp_path / "q.jsonl", *lines)
    [first, *_], _ = draw_examples(
        MultiDocumentQA(data=data, documents=3), "lpes", questions=5, held_out=3
    )
    assert first.is_right("The prize went to Wilhelm röntgen.")
    assert first.is_right("“Röntgen”, in 1901")
    assert not first.is_right("Nobody knows.")
    assert first.max_new_tokens == 100
    [invented, *_], _ = draw_examples(
        InventedDocuments(cited=True), "lpes", questions=5, held_out=3
    )
    value = invented.answer.rpartition(": ")[2]
    assert invented.is_right(f"It is {value}, I think.")
    assert not invented.is_right(f"It is {value}x.")  # stated as a whole, or not at all


def test_the_papers_sizes_have_a_name() -> None:
    search = make_search("lpes:paper")
    assert isinstance(search, LayerSearch)
    assert (search.questions, search.held_out, search.weights) == (200, 500, (0.2, 0.3, 0.5))
    assert (search.population, search.parents, search.generations) == (32, 12, 20)
    assert (search.mutants, search.crossovers, search.as_in_paper) == (16, 4, True)
    # Equation 7, whatever the template.
    assert {search.criterion_for(chat=chat) for chat in (True, False)} == {"generated_answer"}
    assert LayerSearch().criterion_for(chat=False) == "exact_match"
    assert make_search("lpes:paper", {"generations": 3}).generations == 3  # type: ignore[attr-defined]


def test_a_question_with_other_answers_is_not_held_out_from_itself(tmp_path: Path) -> None:
    lines = [
        {"question": f"Who is {n}?", "answers": answers, "gold": f"{n} is A{n} B{n}."}
        for n in range(20)
        for answers in ([f"A{n}"], [f"B{n}", f"A{n}"], [f"A{n} B{n}"])
    ]
    task = task_for_file(write_lines(tmp_path / "q.jsonl", *lines), documents=3)
    searched, held_out = draw_examples(task, "lpes", questions=10, held_out=50)
    asked = [{example.prompt.suffix for example in part} for part in (searched, held_out)]
    assert all(asked)
    assert asked[0].isdisjoint(asked[1])


def numbered(folder: Path, count: int) -> Path:
    """Questions "Who is 0?" and so on, in their order."""
    lines = [
        {"question": f"Who is {n}?", "answers": [f"A{n}"], "gold": f"{n} is A{n}."}
        for n in range(count)
    ]
    return write_lines(folder / "q.jsonl", *lines)


def test_the_search_has_other_questions_than_an_evaluation_of_the_same_data(tmp_path: Path) -> None:
    data = task_for_file(numbered(tmp_path, 130), documents=2)
    for task in (data, InventedDocuments(documents=2)):
        reported = {item.question for item in task.items(50, 0)}
        searched, held_out = draw_examples(task, "lpes", questions=20, held_out=50)
        assert len({example.question for example in (*searched, *held_out)}) == 70
        texts = {example.prompt.suffix for example in (*searched, *held_out)}
        assert not any(question in text for question in reported for text in texts)


@pytest.mark.parametrize(("questions", "held_out", "kept"), [(3, 100, (3, 7)), (40, 2, (8, 2))])
def test_the_fewest_questions_suffice_where_the_data_has_them(
    questions: int, held_out: int, kept: tuple[int, int], tmp_path: Path
) -> None:
    task = task_for_file(numbered(tmp_path, 10), documents=3)
    parts = draw_examples(task, "lpes", questions=questions, held_out=held_out)
    assert tuple(len({e.question for e in part}) for part in parts) == kept
    with pytest.raises(ConfigError, match="4 questions are too few"):
        draw_examples(task_for_file(numbered(tmp_path, 4), documents=3), "lpes", questions=3)
