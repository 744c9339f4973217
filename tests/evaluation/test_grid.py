"""Several gold documents, chains of keys, and questions without their gold document."""

import json
import re
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from rag_middle.documents import ContextPrompt, Document
from rag_middle.errors import ConfigError, FileFormatError
from rag_middle.evaluation import (
    GOLD_ABSENT,
    GOLD_ONLY,
    Abstention,
    Condition,
    Grid,
    Item,
    KeyValueChains,
    Measurement,
    MultiHop,
    Results,
    Task,
    arranged_documents,
    grid_of,
    position,
    run,
    task_for_file,
    write_evaluation,
)
from rag_middle.evaluation.conditions import chain
from rag_middle.evaluation.report import show_grid
from rag_middle.evaluation.tasks.abstention import abstains
from rag_middle.generation import RagMiddleModel
from tests.evaluation.fake_models import FakeReader, fake_reader
from tests.reader.questions import InventedDocuments

HOW = Measurement(limit=40, positions=3)


class Scripted(FakeReader):
    """Says what a function of prompt and method says."""

    def __init__(self, like: RagMiddleModel, says: Callable[[ContextPrompt, str], str]) -> None:
        super().__init__(like, (), lambda *_: 0.0)
        self._says = says

    def answer(self, prompt: ContextPrompt, method: str) -> str:
        return self._says(prompt, method)


def written(path: Path, *lines: object) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def text_of(item: Item, condition: Condition) -> str:
    return "".join(document.text for document in arranged_documents(item, condition))


# -- conditions -----------------------------------------------------------------------------------


def test_gold_documents_stand_where_the_condition_says_and_the_others_keep_their_order() -> None:
    golds, others = ([Document(name) for name in names] for names in ("12", "abc"))
    item = Item(id="0", question="?", answers=("x",), golds=tuple(golds), others=tuple(others))
    assert text_of(item, chain((1, 3))) == "a1b2c"
    assert text_of(item, chain((3, 1))) == "a2b1c"
    assert text_of(item, GOLD_ONLY) == "12"
    assert text_of(item, GOLD_ABSENT) == "abc"
    assert [chain((3, 1)).name, chain((3, 1), 1).name] == ["chain:3,1", "chain:3,1/1"]
    one = Item(id="0", question="?", answers=("g",), gold=Document("g"), others=tuple(others))
    assert text_of(one, position(1, 3)) == "agb"  # the first of the others
    assert position(1, 3).name == "position:1/3"
    for wrong in (chain((0,)), chain((0, 5)), chain((0, 1, 2))):
        with pytest.raises(ConfigError, match="each of them a 0-based position"):
            arranged_documents(item, wrong)
    with pytest.raises(ConfigError, match="each of them a 0-based position"):
        arranged_documents(one, position(3, 3))


def test_words_of_the_other_documents_are_shuffled() -> None:
    gold, lyon = Document("Nantes."), Document("Lyon lies on the Rhône.", title="Lyon", id="l")
    item = Item(id="0", question="?", answers=("Loire",), gold=gold, others=(lyon,))
    filler = arranged_documents(item, position(1, change="random_filler"))
    assert filler == arranged_documents(item, position(1, change="random_filler"))  # in any process
    assert (filler[1], filler[0].id) == (gold, "l")
    assert filler[0].text != lyon.render()
    assert sorted(filler[0].text.split()) == sorted(lyon.render().split())


def test_distance_leaves_the_mean_position_as_it_is() -> None:
    layout = MultiHop(hops=3, documents=11).layout(5)
    forward, backward, direct = layout.rows.values()
    assert tuple(forward) == (
        "distance 1",
        "distance 2",
        "distance 3",
        "distance 4",
        "distance 5",
    )
    for ahead, reverse, asked in zip(
        *(row.values() for row in (forward, backward, direct)), strict=True
    ):
        assert ahead.golds == reverse.golds[::-1] == asked.golds
        assert sum(ahead.golds) == 3 * 5
    assert forward["distance 5"].golds == (0, 5, 10)


# -- tasks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("hops", [2, 3])
def test_invented_questions_need_all_of_their_documents(hops: int) -> None:
    task = MultiHop(hops=hops, documents=9)
    [row, *_] = task.layout(2).rows.values()
    for item in task.items(20, 0):
        assert len(item.documents) == 9
        [answer], golds = item.answers, [document.text for document in item.golds]
        everything = [document.text for document in item.documents]
        assert [text for text in everything if answer in text] == golds[-1:]
        # The question names the thing of the first document, and nothing of the last one.
        title, last_title = (document.id.partition(":")[0] for document in item.golds[:: hops - 1])
        assert title in item.question
        assert last_title not in item.question
        assert last_title in item.details["last_question"]
        # Each step leads to the next by a name that both documents hold.
        person = item.details["first_value"]
        assert all(person in text for text in golds[:2])
        assert sum(person in text for text in everything) == 2
        direct = task.prompt(item, chain(row["distance 1"].golds, 1))
        assert item.details["last_question"] in direct.suffix


def test_chains_of_keys_end_in_the_answer_whatever_their_length() -> None:
    task = KeyValueChains(keys=10, hops=3)
    for item in task.items(5, 0):
        for name, row in task.layout(3).rows.items():
            for condition in row.values():
                prompt = task.prompt(item, condition)
                assert len(prompt.documents) == 10
                pairs = json.loads("{" + ", ".join(d.text for d in prompt.documents) + "}")
                [value] = re.findall(r'Key: "(.+)"', prompt.suffix)
                steps = 0
                while value in pairs:
                    value, steps = pairs[value], steps + 1
                assert (value,) == item.answers
                assert f"{steps} step" in name
    assert task.items(2, 0)[:1] == task.items(1, 0)
    assert task.items(1, 0) != task.items(1, 1)


LINE = {"question": "Who?", "answers": ["Ada"]}
FLAGGED = [{"text": "a", "gold": True}, "b", {"text": "Ada", "gold": True}, "c"]


def test_own_questions_name_their_gold_documents_by_position_or_by_flag(tmp_path: Path) -> None:
    data = written(
        tmp_path / "own.jsonl",
        {**LINE, "documents": ["Ada", "b", "a", "c"], "gold": [2, 0]},
        {**LINE, "documents": FLAGGED},
    )
    task = task_for_file(data)
    assert isinstance(task, MultiHop)
    for item in task.items(None, 0):
        assert [document.text for document in item.golds] == ["a", "Ada"]
        assert [document.text for document in item.others] == ["b", "c"]
    assert len(task.layout(5).rows) == 2  # nobody knows how the last step alone is asked for
    three = {**LINE, "documents": list("abcdef"), "gold": [0, 1, 2]}
    mixed = written(tmp_path / "mixed.jsonl", {**LINE, "documents": FLAGGED}, three)
    assert [item.id for item in MultiHop(data=mixed, hops=3).items(None, 0)] == ["1"]
    assert "but for 1 line with another number" in MultiHop(data=mixed, hops=3).provenance
    assert [item.id for item in MultiHop(data=mixed).items(None, 0)] == ["0"]
    with pytest.raises(FileFormatError, match=r"mixed.jsonl has no question with 4 gold"):
        MultiHop(data=mixed, hops=4)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: MultiHop(hops=4), "over 2 or 3 of them, got hops=4"),
        (lambda: MultiHop(hops=3, documents=4), "Use 5 documents or more"),
        (lambda: KeyValueChains(keys=3, hops=3), "keys must be a whole number >= 4"),
        (lambda: Abstention(phrases=()), "at least one"),
        (lambda: Measurement(grid=(5,)).layout(MultiHop()), "no grid and no changes"),
        (lambda: Measurement(positions=(0, 3)).layout(MultiHop()), "a number of positions"),
    ],
)
def test_what_makes_no_sense_is_refused(wrong: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        wrong()


def test_whether_an_answer_abstains() -> None:
    for answer in ("I don’t know.", "That is NOT  mentioned.", "It cannot be determined"):
        assert abstains(answer)
    assert not abstains("")
    assert not abstains("The Unknowns")
    assert not abstains("I don't know", ("pass",))
    assert abstains("Pass!", ("pass",))
    assert abstains("_I don\u2018t know_")
    assert abstains("对不起,我不知道答案。", ("不知道",))


def test_absent_gold_documents_are_replaced_and_must_be_noticed(tmp_path: Path) -> None:
    task = Abstention(documents=5)
    for item in task.items(10, 0):
        present, absent = (
            task.prompt(item, condition).documents for condition in (position(2, 5), GOLD_ABSENT)
        )
        assert len(present) == len(absent) == 5
        assert item.gold in present
        assert not any(item.answers[0] in document.text for document in absent)
        assert task.scores(item, GOLD_ABSENT, "I do not know") == {"accuracy": 1, "abstained": 1}
        assert task.scores(item, GOLD_ABSENT, item.answers[0])["accuracy"] == 0
        assert task.scores(item, position(0), item.answers[0])["accuracy"] == 1
        hedged = f"I don't know, perhaps {item.answers[0]}"
        assert task.scores(item, position(0), hedged) == {"accuracy": 0, "abstained": 1}
    line = {"question": "Who?", "answers": ["Ada"], "gold": "Ada.", "distractors": ["b", "c", "d"]}
    told = {**line, "question": "Who then?", "distractors": ["b", "so Ada", "d"]}
    own = written(tmp_path / "own.jsonl", told, line)
    of_file = Abstention(data=own)
    assert [item.id for item in of_file.items(1, 0)] == ["1"]
    assert of_file.documents == 3


# -- results --------------------------------------------------------------------------------------


def near_only(task: Task) -> Callable[[ContextPrompt, str], str]:
    """Answers where the gold documents are neighbours in order; ms_poe also where reversed."""
    by_question = {item.question: item for item in task.items(40, 0)}

    def says(prompt: ContextPrompt, method: str) -> str:
        asked = prompt.suffix.removeprefix("Question: ").removesuffix("\nAnswer:")
        item = by_question.get(asked)
        if item is None:
            return "nothing"
        first, second = (prompt.documents.index(gold) for gold in item.golds)
        right = second - first == 1 or (method == "ms_poe" and first > second)
        return item.answers[0] if right else "no idea"

    return says


def factors(model: RagMiddleModel, task: Task, says: Callable[[ContextPrompt, str], str]) -> Grid:
    table = grid_of(run(Scripted(model, says), task, ["ms_poe"], HOW))
    assert table is not None
    return table


def test_distance_and_order_are_told_apart(model: RagMiddleModel) -> None:
    task = MultiHop(documents=9)
    table = factors(model, task, near_only(task))
    ahead, reverse, _ = table.rows
    assert [e.value for e in ahead.curves["none"].estimates] == [1, 0, 0]
    assert [e.value for e in reverse.curves["none"].estimates] == [0, 0, 0]
    assert reverse.changes["none"].value == pytest.approx(-1 / 3)
    assert reverse.differences["ms_poe"].value == 1
    assert ahead.differences["ms_poe"].exact
    assert table.confidence == pytest.approx(1 - 0.05 / (3 + 2 * 2))


def test_abstentions_are_counted(model: RagMiddleModel) -> None:
    task = Abstention(documents=4)
    items = {item.question: item for item in task.items(40, 0)}

    def says(prompt: ContextPrompt, method: str) -> str:
        [item] = [item for question, item in items.items() if question in prompt.suffix]
        if item.gold in prompt.documents:
            return item.answers[0]
        return "I don't know." if method == "ms_poe" else "Paris"

    table = factors(model, task, says)
    present, absent = table.rows
    shares = [row.abstained[label].value for row in table.rows for label in ("none", "ms_poe")]
    assert shares == [0, 0, 0, 1]
    assert present.curves["none"].mean.value == 1
    assert absent.differences["ms_poe"].value == 1


def test_a_run_is_continued_and_reported(model: RagMiddleModel, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    task = Abstention(documents=4)
    fake = Scripted(model, lambda prompt, method: f"{method}: unknown")
    records = tmp_path / "records.jsonl"
    run(fake, task, (), Measurement(limit=4, positions=2), records=records)
    results = run(fake, task, (), Measurement(limit=4, positions=3), records=records)
    assert fake.asked == 4 * (2 + 1) + 4 * 1  # only the position between is new
    path = write_evaluation(results, tmp_path / "report")
    page = path.read_text("utf-8")
    assert "Gold document and position of the gold document" in page
    data = json.loads(path.with_suffix(".json").read_text("utf-8"))["grid"]
    assert [row["name"] for row in data["rows"]] == ["present", "absent"]
    table = grid_of(results)
    assert table is not None
    shown = StringIO()
    show_grid(Console(file=shown, width=100), table)
    assert "abstained" in shown.getvalue()


TWENTY = InventedDocuments(documents=20)
GRID = Measurement(limit=100, grid=(5, 10))


def length_hurts_without_pine(method: str, at: int | None, documents: int) -> float:
    """Ends stay good, the middle falls with length; Ms-PoE only hurts where it is short."""
    if method == "pine":
        return 0.9
    if method == "ms_poe" and documents == 5:
        return 0.4
    return 0.9 if at in (0, documents - 1) or documents == 5 else 1.0 - 0.03 * documents


@pytest.fixture(scope="module")
def results(model: RagMiddleModel) -> Results:
    return run(
        fake_reader(model, TWENTY, length_hurts_without_pine), TWENTY, ["pine", "ms_poe"], GRID
    )


@pytest.fixture(scope="module")
def grid(results: Results) -> Grid:
    grid = grid_of(results)
    assert grid is not None
    return grid


def test_cells_are_the_models_accuracy_at_that_length_and_position(grid: Grid) -> None:
    assert [row.name for row in grid.rows] == ["5 documents", "10 documents", "20 documents"]
    assert grid.rows[0].columns == ("at 0", "at 1", "at 2", "at 3", "at 4")
    assert grid.rows[2].columns == ("at 0", "at 4", "at 9", "at 14", "at 19")
    for row, documents in zip(grid.rows, (5, 10, 20), strict=True):
        for label, curve in row.curves.items():
            for column, estimate in zip(row.columns, curve.estimates, strict=True):
                chance = length_hurts_without_pine(label, int(column[3:]), documents)
                assert estimate.value == pytest.approx(chance, abs=0.15)  # 3 standard deviations


def test_differences_of_all_cells_are_corrected_together(grid: Grid) -> None:
    short, middling, long = grid.rows
    assert [row.differences["pine"].low > 0 for row in grid.rows] == [False, True, True]
    assert short.differences["ms_poe"].high < 0
    assert all(row.differences["ms_poe"].includes_zero for row in (middling, long))
    assert long.changes["none"].high < 0
    # Two methods in three rows, and three methods in two rows against the first.
    assert grid.confidence == pytest.approx(1 - 0.05 / (6 + 6))


def test_the_unmodified_model_is_asked_at_the_same_positions(model: RagMiddleModel) -> None:
    task = InventedDocuments(documents=5)
    fake = fake_reader(model, task, lambda m, at, d: 0.9)
    how = Measurement(limit=10, positions=3, changes=("random_filler",))
    [control] = run(fake, task, ["pine"], how).summary().controls
    assert fake.asked == 10 * (3 * 2 + 1)  # PINE: once per question
    assert control.difference.exact
    assert control.title == "the other documents' words shuffled"
