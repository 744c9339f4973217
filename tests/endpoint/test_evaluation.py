"""A measurement over HTTP is that of the model here; what cannot be measured there is refused."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from rag_middle.documents import ContextPrompt
from rag_middle.endpoint import EndpointModel
from rag_middle.errors import EndpointError, FileFormatError, WeightsNeededError
from rag_middle.evaluation import (
    Measurement,
    Results,
    diagnose,
    run,
    task_for_file,
    write_evaluation,
)
from rag_middle.evaluation.wrong_answers import missing_answers
from rag_middle.generation import RagMiddleModel
from tests.endpoint.server import Request, Said, answer, of_model, saying, serving
from tests.reader import reader_path
from tests.reader.questions import InventedDocuments

TASK = InventedDocuments(documents=4)
FEW = Measurement(limit=3, positions=2, controls=True, max_new_tokens=4)


def _answers(results: Results) -> dict[tuple[str, str, str], tuple[str | None, int]]:
    return {key: (r.answer, r.prompt_tokens) for key, r in results.records.items()}


@pytest.mark.parametrize("template", ["chat", "raw"])
def test_answers_and_lengths_over_http_are_those_of_the_model(
    model: RagMiddleModel, template: str
) -> None:
    measurement = Measurement(
        limit=3, positions=2, orders=2, controls=True, max_new_tokens=4, template=template
    )
    local = run(model, TASK, ["long_context_reorder"], measurement)
    with serving(of_model(model)) as server:
        remote = run(EndpointModel(server.url), TASK, ["long_context_reorder"], measurement)
    assert _answers(remote) == _answers(local)
    assert len({text for text, _ in _answers(local).values()}) > 1
    assert remote.curves().to_dict() == local.curves().to_dict()
    assert {request.path for request in server.asked} == {
        "/v1/chat/completions" if template == "chat" else "/v1/completions"
    }


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_readers_curve_over_http_is_its_own() -> None:
    reader = RagMiddleModel.from_pretrained(reader_path(), device="cpu")
    task = InventedDocuments(documents=20, cited=True)
    measurement = Measurement(limit=8, positions=3, max_batch_size=1)
    local = run(reader, task, (), measurement)
    with serving(of_model(reader)) as server:
        remote = run(EndpointModel(server.url), task, (), measurement)
    assert _answers(remote) == _answers(local)
    assert remote.curves().to_dict() == local.curves().to_dict()
    assert local.curves()["none"].mean.value > 0


def test_a_diagnosis_says_where_the_model_is_and_what_needs_its_weights() -> None:
    def first_only(request: Request) -> Said:
        """Repeats the first two documents of four, whatever the question is about."""
        return Said(answer(request.text[: len(request.text) // 2]))

    with serving(first_only) as server:
        diagnosis = diagnose(
            EndpointModel(server.url), TASK, measurement=Measurement(limit=24, positions=2)
        )
    assert diagnosis.model["endpoint"] == server.url
    assert diagnosis.software["device"] == server.url
    assert [method.label for method in diagnosis.summary.methods] == ["none"]
    assert diagnosis.recommendation.reason == "nothing_tried"
    assert any("rag-middle serve" in step for step in diagnosis.next_steps)
    assert not any("calibrate" in step for step in diagnosis.next_steps)
    assert not diagnosis.answer_time_ratios


@pytest.mark.parametrize(
    "method",
    ["pine", "ms_poe", "positional_hidden_states:vicuna-7b-v1.5-16k", "attention_sorting", "rotor"],
)
def test_methods_that_need_weights_are_refused_before_anything_is_asked(method: str) -> None:
    with (
        serving(saying("x")) as server,
        pytest.raises(WeightsNeededError, match="rag-middle serve"),
    ):
        run(EndpointModel(server.url), TASK, [method], FEW)
    assert not server.asked


def test_log_likelihoods_are_refused_with_what_to_use_instead() -> None:
    measurement = Measurement(limit=3, positions=2, scoring="likelihood")
    with (
        serving(saying("x")) as server,
        pytest.raises(WeightsNeededError, match="scoring='generation'"),
    ):
        run(EndpointModel(server.url), TASK, (), measurement)
    assert not server.asked


def test_what_a_run_will_cost_is_known_before_it_begins() -> None:
    told: list[tuple[int, int, int]] = []
    with serving(saying("x")) as server:
        model = EndpointModel(server.url)

        def planned(asking: object, new_tokens: int) -> None:
            work = model.workload(asking, new_tokens)  # type: ignore[arg-type]
            told.append((work.requests, work.prompt_tokens, work.new_tokens))
            assert not server.asked

        run(model, TASK, ["permutation"], FEW, planned=planned)
    [(requests, prompt_tokens, new_tokens)] = told
    # Two positions of three questions in four orders, and without them, and two controls.
    assert requests == len(server.asked) == 3 * (2 + 2 + 2 * 4)
    assert new_tokens == requests * 4
    sent = sum(len(request.text) for request in server.asked) / 4
    assert prompt_tokens == pytest.approx(sent, rel=0.01)


def test_an_interrupted_run_goes_on_and_pays_for_no_answer_twice(tmp_path: Path) -> None:
    records = tmp_path / "records.jsonl"
    asked = 0

    def failing(request: Request) -> Said:
        nonlocal asked
        asked += 1
        if asked > 5:
            return Said({"error": {"message": "no money left", "code": "insufficient_quota"}}, 429)
        return Said(answer(f"answer to {request.text[-80:]}"))

    with serving(failing) as server:
        model = EndpointModel(server.url, retries=0)
        one_at_a_time = Measurement(limit=3, positions=2, controls=True, max_batch_size=1)
        with pytest.raises(EndpointError, match=r"no money left.*goes on where it stopped"):
            run(model, TASK, (), one_at_a_time, records=records)
        before = records.read_bytes()
        assert before.count(b'"kind": "record"') == 5
        server.reply = saying("x")
        run(model, TASK, (), one_at_a_time, records=records)
        assert records.read_bytes().startswith(before)
        assert len(server.asked) == 6 + (3 * 4 - 5)


def test_what_was_on_its_way_when_a_request_failed_is_kept(tmp_path: Path) -> None:
    records = tmp_path / "records.jsonl"

    def one_fails(request: Request) -> Said:
        if len(server.asked) == 2:
            return Said({"error": {"message": "no"}}, 400)
        return Said(answer("yes"))

    with serving(one_fails) as server:
        with pytest.raises(EndpointError, match="status 400"):
            run(EndpointModel(server.url), TASK, (), FEW, records=records)
        answered = len(server.asked) - 1
    assert records.read_bytes().count(b'"kind": "record"') == answered >= 1


def test_records_of_another_server_or_model_are_not_continued(tmp_path: Path) -> None:
    records = tmp_path / "records.jsonl"
    with serving(saying("x")) as server, serving(saying("x")) as other:
        run(EndpointModel(server.url), TASK, (), FEW, records=records)
        header = json.loads(records.read_text(encoding="utf-8").splitlines()[0])
        assert header["model"]["endpoint"] == server.url
        server.models = Said({"data": [{"id": "tiny", "created": 2}]})  # vLLM: when it was asked
        run(EndpointModel(server.url), TASK, (), FEW, records=records)
        with pytest.raises(FileFormatError, match="another measurement"):
            run(EndpointModel(other.url), TASK, (), FEW, records=records)
        with pytest.raises(FileFormatError, match="another measurement"):
            run(EndpointModel(server.url, "larger"), TASK, (), FEW, records=records)
        server.models = Said({"data": [{"id": "tiny", "max_model_len": 4096}]})
        changed = EndpointModel(server.url)
        assert changed.context_window == 4096
        with pytest.raises(FileFormatError, match="another measurement"):
            run(changed, TASK, (), FEW, records=records)


def test_no_more_requests_at_a_time_than_allowed(model: RagMiddleModel) -> None:

    def slowly(request: Request) -> Said:
        time.sleep(0.05)
        return Said(answer(request.text))

    prompts = [ContextPrompt(suffix=f"question {index}") for index in range(12)]
    with serving(slowly) as server:
        answers = EndpointModel(server.url).batch(prompts, max_batch_size=3)
    assert [each.text for each in answers] == [prompt.suffix for prompt in prompts]
    assert server.most_at_once == 3


def test_withheld_answers_are_kept_counted_and_not_asked_again(tmp_path: Path) -> None:
    records = tmp_path / "records.jsonl"

    def filtered(request: Request) -> Said:
        if len(server.asked) == 1:
            return Said({"error": {"message": "filtered", "code": "content_filter"}}, 400)
        if len(server.asked) == 2:
            return Said(answer("", message={"content": None, "refusal": "I cannot."}))
        if len(server.asked) == 3:
            return Said(answer(""))
        return Said(answer("yes"))

    measurement = Measurement(limit=3, positions=2)
    with serving(filtered) as server:
        model = EndpointModel(server.url)
        results = run(model, TASK, (), measurement, records=records)
        again = diagnose(model, TASK, (), measurement, records=records)
        assert len(server.asked) == 6
    withheld = [record for record in results.records.values() if record.withheld]
    assert [record.answer for record in withheld] == ["", ""]
    assert not any(any(record.scores.values()) for record in withheld)
    assert records.read_bytes().count(b'"withheld"') == 2
    assert "withheld answers, whole or in part: 2 of 6 answers under none" in again.notes[0]
    assert "answered nothing: 1 of 6 answers under none" in again.notes[1]
    files = write_evaluation(results, tmp_path)
    assert json.loads(files.json.read_text())["notes"] == list(again.notes[:2])
    assert "2 of 6 answers under none" in files.html.read_text()
    assert files.html.read_text().count(" (withheld)") == 2


def test_withheld_answers_have_no_vote() -> None:
    def filtered(request: Request) -> Said:
        if len(server.asked) < 3:
            return Said(answer("", finish_reason="content_filter"))
        return Said(answer("yes"))

    prompt = ContextPrompt(documents=["one", "two", "three"], suffix="Which?")
    with serving(filtered) as server:
        model = EndpointModel(server.url)
        generation = model.generate(prompt, method="permutation", method_options={"orders": 3})
        assert len(server.asked) == 3
    assert (generation.text, generation.finish_reason) == ("yes", "stop")


CHANNEL = "<|channel|>"  # of gpt-oss


@pytest.mark.parametrize(
    ("written", "scored", "unfinished"),
    [
        ("<think>Is it {right}?</think>\nNo idea.", 0.0, False),
        ("\n<think>no</think>{right}", 1.0, False),
        ("Is it {right}?</think>No idea.", 0.0, False),
        ("<think>Is it {right}", 0.0, True),
        ("{right}, as <think> and </think> say.", 1.0, False),
        ("[THINK]Is it {right}?[/THINK]No idea.", 0.0, False),
        ("[THINK]Is it {right}", 0.0, True),
        ("{right}, as [THINK] and [/THINK] say.", 1.0, False),
        ("<seed:think>Is it {right}?</think></seed:think>No idea.", 0.0, False),
        ("<thought>\nIs it {right}?\n</thought>\nNo idea.", 0.0, False),
        (f"{CHANNEL}analysis<|message|>{{right}}?<|end|>{CHANNEL}final<|message|>No", 0.0, False),
        ("<|channel>thought\nIs it {right}?<channel|>No idea.", 0.0, False),
        (f"{CHANNEL}analysis<|message|>Is it {{right}}?", 0.0, True),
        (f"{CHANNEL}final<|message|>{{right}}", 1.0, False),
        ("analysisIs it {right}?assistantfinalNo idea.", 0.0, False),
        ("analysis says {right}", 1.0, False),
    ],
)
def test_thinking_in_the_text_is_no_part_of_the_answer(
    written: str, scored: float, unfinished: bool
) -> None:
    answers = {item.question: item.answers[0] for item in TASK.items(3, 0)}

    def reply(request: Request) -> Said:
        [right] = [text for question, text in answers.items() if question in request.text]
        return Said(answer(written.format(right=right)))

    with serving(reply) as server:
        results = run(EndpointModel(server.url), TASK, (), Measurement(limit=3, positions=2))
    assert results.scores("none").mean() == scored
    assert {record.unfinished for record in results.records.values()} == {unfinished}
    begin = written.partition("{")[0]
    assert all(str(record.answer).startswith(begin) for record in results.records.values())
    assert bool(missing_answers(results)) is unfinished


def test_a_question_that_the_data_repeats_counts_once(tmp_path: Path) -> None:
    def line(number: int, question: str) -> str:
        others = [f"Village {number}{other} lies high." for other in range(3)]
        gold = f"Town {number} lies on the River{number}."
        content = {"question": question, "answers": [f"River{number}"], "gold": gold}
        return json.dumps({**content, "distractors": others}) + "\n"

    data = tmp_path / "questions.jsonl"
    asked = [(n, f"On which river lies town {n}?") for n in range(5)]
    data.write_text("".join(line(n, q) + line(n, f" {q.upper()}") for n, q in asked), "utf-8")
    with serving(saying("River1")) as server:
        results = run(EndpointModel(server.url), task_for_file(data), (), Measurement(positions=2))
    assert results.curves().questions == 5
    assert results.repeated == 5
    assert missing_answers(results)[0].startswith("Left out: 5 questions")


@pytest.mark.parametrize(("limit", "kept", "repeated"), [(5, 5, 15), (6, 6, 18), (100, 30, 90)])
def test_a_limit_counts_questions_and_not_repetitions(
    tmp_path: Path, limit: int, kept: int, repeated: int
) -> None:
    data = tmp_path / "questions.jsonl"
    gold = {"question": "Which?", "answers": ["a"], "distractors": ["x", "y"]}
    lines = [json.dumps({**gold, "gold": f"Town {n} lies on a."}) for n in range(30)]
    data.write_text("".join(f"{line}\n" * 4 for line in lines), "utf-8")
    items, left_out = task_for_file(data).distinct_items(limit, 0)
    assert [item.gold and item.gold.text for item in items] == [
        f"Town {n} lies on a." for n in range(kept)
    ]
    assert left_out == repeated


def test_text_in_parts_is_read() -> None:
    whole = answer("")
    parts = [{"type": "text", "text": "River"}, {"type": "text", "text": "1"}]
    whole["choices"][0]["message"]["content"] = parts
    with serving(lambda _: Said(whole)) as server:
        assert EndpointModel(server.url).generate("Where?").text == "River1"


def test_answers_that_differ_by_a_sign_of_a_number_flip() -> None:
    asked = 0

    def reply(request: Request) -> Said:
        nonlocal asked
        asked += 1
        return Said(answer(("4.5", "45")[asked % 2]))

    orders = Measurement(limit=2, positions=2, orders=4, max_batch_size=1)
    with serving(reply) as server:
        results = run(EndpointModel(server.url), TASK, measurement=orders)
    flips = results.summary()["none"].consistency
    assert flips is not None
    assert (flips.changed.value, flips.entropy.value, flips.minority.value) == (1, 1, 0.5)
