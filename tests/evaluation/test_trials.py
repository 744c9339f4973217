"""Every question once, under every condition and method, also when a run is killed."""

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from rag_middle.errors import ConfigError, FileFormatError, MethodConfigError, UnknownNameError
from rag_middle.evaluation import Measurement, position, run, task_for_file
from rag_middle.generation import RagMiddleModel
from tests.evaluation.fake_models import fake_reader
from tests.reader.questions import InventedDocuments, write_lines

TASK = InventedDocuments(documents=4)
HOW = Measurement(limit=6, positions=3, orders=2, controls=True, max_batch_size=2)


def u_shape(method: str, at: int | None, documents: int) -> float:
    return 1.0 if at in (0, documents - 1) else 0.0


def answers_in(path: Path) -> list[tuple[str, str, str]]:
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [
        (line["method"], line["condition"], line["item"])
        for line in lines
        if line["kind"] == "record"
    ]


def test_every_question_is_asked_under_every_method_and_condition(model: RagMiddleModel) -> None:
    task = InventedDocuments(documents=6)
    fake = fake_reader(model, task, u_shape)
    results = run(fake, task, ["pine"], HOW)
    conditions = ["position:0", "position:2", "position:5", "order:0", "order:1"]
    asked = Counter((method, condition) for method, condition, _ in results.records)
    expected = {(m, c): 6 for m in ("none", "pine") for c in conditions}
    controls = {("none", "gold_only"): 6, ("none", "closed_book"): 6}
    assert asked == expected | controls
    assert fake.asked == sum(asked.values()) - 6 * (len(conditions) - 1)  # PINE: once per question
    for item in results.items:
        of_pine = [results.records["pine", condition, item.id] for condition in conditions]
        assert len({record.answer for record in of_pine}) == 1


class KilledError(Exception):
    """Stands for a signal."""


def test_a_killed_run_continues_without_a_repeated_record(
    model: RagMiddleModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "records.jsonl"
    fake = fake_reader(model, TASK, u_shape)
    whole = run(fake, TASK, ["pine"], HOW)

    def kill(done: int, total: int) -> None:
        if done > 20:
            raise KilledError

    with pytest.raises(KilledError):
        run(fake, TASK, ["pine"], HOW, records=path, progress=kill)
    stopped_at = len(answers_in(path))
    assert 20 < stopped_at < len(whole.records)
    with path.open("ab") as file:
        file.write(b'{"kind": "record", "method": "none", "cond')  # what a kill may leave
    # Nothing rewrites the file, as a kill would then lose it.
    monkeypatch.setattr(Path, "write_bytes", lambda *_: pytest.fail("the file is rewritten"))
    reported: list[tuple[int, int]] = []
    continued = run(
        fake, TASK, ["pine"], HOW, records=path, progress=lambda *at: reported.append(at)
    )
    keys = answers_in(path)
    assert len(keys) == len(set(keys)) == len(whole.records)
    assert continued.records == whole.records
    (done, total), last = reported[0], reported[-1]
    assert 20 < done <= stopped_at  # answers, of which one may be recorded several times
    assert last == (total, total)
    assert total < len(whole.records)


def test_records_of_something_else_are_refused_and_left_as_they_are(
    model: RagMiddleModel, tmp_path: Path
) -> None:
    path = tmp_path / "records.jsonl"
    fake = fake_reader(model, TASK, u_shape)
    two = Measurement(limit=2)
    run(fake, TASK, [], two, records=path)
    for task, how, difference in (
        (InventedDocuments(documents=5), two, r"task\.documents is 4 there and 5 in"),
        (TASK, Measurement(limit=2, seed=1), "seed is 0 there and 1 in this run"),
        (TASK, Measurement(limit=2, template="raw"), "template is 'auto' there and 'raw' in"),
    ):
        with pytest.raises(FileFormatError, match="another run, as line 1") as raised:
            run(fake, task, [], how, records=path)
        assert re.search(difference, str(raised.value))
        assert "{" not in str(raised.value)
    lines = path.read_bytes().splitlines()
    damaged = b"\n".join([*lines[:3], b"{", *lines[4:], b""])
    for content, message in (
        (damaged, "Line 4"),
        (b"notes", "no record of a run"),
        (b'{"a": 1}\n{"b": 2}', "another run"),
    ):
        path.write_bytes(content)
        with pytest.raises(FileFormatError, match=message):
            run(fake, TASK, [], two, records=path)
        assert path.read_bytes() == content


def test_a_label_cannot_change_its_meaning(model: RagMiddleModel, tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    fake = fake_reader(model, TASK, u_shape)
    how = Measurement(limit=1)
    run(fake, TASK, [{"name": "lpes", "options": {"factors": 1.2}}], how, records=path)
    with pytest.raises(FileFormatError, match=r"LPES\(factors=1.2\)"):
        run(fake, TASK, [{"name": "lpes", "options": {"factors": 1.3}}], how, records=path)
    fitted = {"name": "lpes", "options": {"factors": 1.4}, "label": "lpes fitted"}
    results = run(fake, TASK, [fitted], how, records=path)
    assert [method.label for method in results.methods] == ["none", "lpes fitted"]


def test_a_real_model_is_scored_by_likelihood(model: RagMiddleModel) -> None:
    how = Measurement(limit=3, positions=2, scoring="likelihood", controls=True)
    results = run(model, TASK, ["ms_poe"], how)
    item = TASK.items(3, 0)[1]
    wanted = model.score(TASK.prompt(item, position(3)), f" {item.answers[0]}")
    scores = results.records["none", "position:3", "1"].scores
    # A batch pads shorter prompts; float32 sums in another order.
    assert scores["log_likelihood"] == pytest.approx(wanted.total, abs=1e-3)
    assert scores["greedy_match"] == float(wanted.is_greedy)
    assert results.curves("log_likelihood")["none"].mean.value < 0


def test_methods_the_model_cannot_take_are_refused_before_anything_is_asked(
    model: RagMiddleModel,
) -> None:
    fake = fake_reader(model, TASK, u_shape)
    with pytest.raises(MethodConfigError, match="factors"):
        run(fake, TASK, [{"name": "lpes", "options": {"factors": [1.0, 1.2]}}], HOW)
    with pytest.raises(UnknownNameError, match="ms_poe"):
        run(fake, TASK, ["mspoe"], HOW)
    with pytest.raises(ConfigError, match="called 'pine'"):
        run(fake, TASK, ["pine", "pine"], HOW)
    with pytest.raises(ConfigError, match="'none'"):
        run(fake, TASK, [{"name": "pine", "label": "none"}], HOW)
    with pytest.raises(ConfigError, match="A method is a name"):
        run(fake, TASK, [{"nam": "pine"}], HOW)
    assert fake.asked == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"limit": 0}, "limit"),
        ({"orders": 1}, "nothing to compare"),
        ({"scoring": "guess"}, "scoring"),
    ],
)
def test_a_measurement_checks_itself(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Measurement(**settings)  # type: ignore[arg-type]


def test_prompts_that_do_not_fit_are_refused_before_the_first_is_asked(
    model: RagMiddleModel, tmp_path: Path
) -> None:
    path = tmp_path / "questions.jsonl"
    lines = [
        {"question": f"Which is number {n}?", "answers": [f"v{n}"], "title": f"T{n}",
         "text": f"Number {n} is v{n}. " + "word " * (60 if n < 7 else 4)}
        for n in range(8)
    ]  # fmt: skip
    write_lines(path, *lines)
    small = RagMiddleModel(model.model, model.tokenizer, context_window=1000)
    asked: list[int] = []
    with pytest.raises(ConfigError, match="fewer documents: about 3 fit"):
        run(
            small,
            task_for_file(path, documents=4),
            ["pine"],
            Measurement(limit=None, positions=2, max_new_tokens=8),
            progress=lambda done, total: asked.append(done),
        )
    assert asked == []


def test_the_time_of_the_rest_is_told_once_within_ten_answers(model: RagMiddleModel) -> None:
    fake = fake_reader(model, TASK, u_shape)
    estimates: list[tuple[float, int]] = []
    how = Measurement(limit=8, positions=2, max_batch_size=8)
    asked: list[int] = []

    def estimated(seconds: float, missing: int) -> None:
        asked.append(fake.asked)
        estimates.append((seconds, missing))

    run(fake, TASK, ["siw", "ms_poe"], how, estimated=estimated)
    [(seconds, missing)] = estimates
    assert seconds > 0
    assert asked == [3 * 3]
    assert missing == 3 * 8 * 2 - 3 * 3
    run(fake, TASK, [], Measurement(limit=1), estimated=lambda *e: estimates.append(e))
    assert len(estimates) == 1  # it was over by then


def test_an_order_free_method_is_asked_once_per_question(
    model: RagMiddleModel, tmp_path: Path
) -> None:
    path = tmp_path / "records.jsonl"
    fake = fake_reader(model, TASK, u_shape)
    how = Measurement(limit=4, positions=3)
    total: list[int] = []
    results = run(
        fake, TASK, ["pine"], how, records=path, progress=lambda _, count: total.append(count)
    )
    assert fake.asked == total[-1] == 4 * 3 + 4
    assert results.curves()["pine"].gap.exact
    # More orders of the same documents: what was answered stands for them.
    results = run(fake, TASK, ["pine"], replace(how, positions=4, orders=2), records=path)
    assert fake.asked <= total[-1] + 4 * (1 + 2)
    assert len(results.records) == 2 * 4 * (4 + 2)
