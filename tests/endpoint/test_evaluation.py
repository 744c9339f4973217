"""A measurement over HTTP is that of the model here; what cannot be measured there is refused."""

from itertools import count
from pathlib import Path

import pytest

from rag_middle.endpoint import EndpointModel
from rag_middle.errors import EndpointError, FileFormatError
from rag_middle.evaluation import (
    Measurement,
    Results,
    diagnose,
    run,
    task_for_file,
    write_evaluation,
)
from rag_middle.evaluation.results import missing_answers
from rag_middle.thinking import answer_after_thinking
from tests.endpoint.server import Request, Said, answer, of_model, saying, serving
from tests.reader.questions import InventedDocuments, write_lines
from tests.tiny_models import speaking
from tests.tokenizers import CHATML, byte_level_bpe

pytestmark = pytest.mark.thorough

TASK = InventedDocuments(documents=4)
FEW = Measurement(limit=3, positions=2, controls=True, max_new_tokens=4)


def _answers(results: Results) -> dict[tuple[str, str, str], tuple[str | None, int]]:
    return {key: (r.answer, r.prompt_tokens) for key, r in results.records.items()}


def test_answers_and_lengths_over_http_are_those_of_the_model() -> None:
    tokenizer = byte_level_bpe(chat_template=CHATML)
    model = speaking("endpoint", tokenizer, max_position_embeddings=4096)
    measurement = Measurement(limit=3, positions=2, orders=2, controls=True, max_new_tokens=4)
    local = run(model, TASK, ["long_context_reorder"], measurement)
    with serving(of_model(model)) as server:
        remote = run(EndpointModel(server.url), TASK, ["long_context_reorder"], measurement)
    assert _answers(remote) == _answers(local)
    assert len({text for text, _ in _answers(local).values()}) > 1
    assert remote.curves().to_dict() == local.curves().to_dict()


def test_a_diagnosis_says_where_the_model_is_and_what_needs_its_weights() -> None:
    def first_only(request: Request) -> Said:
        """Repeats the first two documents of four, whatever the question is about."""
        return Said(answer(request.text[: len(request.text) // 2]))

    with serving(first_only) as server:
        diagnosis = diagnose(
            EndpointModel(server.url), TASK, measurement=Measurement(limit=24, positions=2)
        )
    assert diagnosis.results.model["endpoint"] == server.url
    assert diagnosis.results.software["device"] == server.url
    assert diagnosis.recommendation.reason == "nothing_tried"
    assert any("rag-middle serve" in step for step in diagnosis.next_steps)
    assert not any("calibrate" in step for step in diagnosis.next_steps)
    assert not diagnosis.answer_time_ratios


def test_an_interrupted_run_goes_on_and_pays_for_no_answer_twice(tmp_path: Path) -> None:
    records = tmp_path / "records.jsonl"

    def failing(request: Request) -> Said:
        if len(server.asked) > 5:
            return Said({"error": {"message": "no money left"}}, 429)
        return Said(answer(f"answer to {request.text[-80:]}"))

    with serving(failing) as server:
        model = EndpointModel(server.url, retries=0)
        one_at_a_time = Measurement(limit=3, positions=2, controls=True, max_batch_size=1)
        with pytest.raises(EndpointError, match="no money left"):
            run(model, TASK, (), one_at_a_time, records=records)
        before = records.read_bytes()
        assert before.count(b'"kind": "record"') == 5
        server.asked.clear()
        server.reply = saying("x")
        run(model, TASK, (), one_at_a_time, records=records)
        assert records.read_bytes().startswith(before)
        assert records.read_bytes().count(b'"kind": "record"') == 3 * 4
        # Seven, and what the thread sent after its failure, before it was told to end.
        assert 3 * 4 - 5 <= len(server.asked) < 3 * 4


def test_records_of_another_server_or_model_are_not_continued(tmp_path: Path) -> None:
    records = tmp_path / "records.jsonl"
    with serving(saying("x")) as server, serving(saying("x")) as other:
        run(EndpointModel(server.url), TASK, (), FEW, records=records)
        entry = {"id": "tiny", "created": 2, "status": "loaded"}  # which say nothing of the model
        server.models = Said({"data": [entry]})
        run(EndpointModel(server.url), TASK, (), FEW, records=records)
        strangers = [EndpointModel(other.url), EndpointModel(server.url, "larger")]
        server.models = Said({"data": [{"id": "tiny", "max_model_len": 4096}]})
        strangers.append(EndpointModel(server.url))
        assert strangers[-1].context_window == 4096
        for stranger in strangers:
            with pytest.raises(FileFormatError, match="another run"):
                run(stranger, TASK, (), FEW, records=records)


def test_withheld_answers_are_kept_counted_and_not_asked_again(tmp_path: Path) -> None:
    records = tmp_path / "records.jsonl"

    numbers = count(1)  # questions come at the same time

    def filtered(request: Request) -> Said:
        number = next(numbers)
        if number <= 2:
            return Said(answer("", message={"content": None, "refusal": "I cannot."}))
        return Said(answer("" if number == 3 else "yes"))

    measurement = Measurement(limit=3, positions=2)
    with serving(filtered) as server:
        model = EndpointModel(server.url)
        results = run(model, TASK, (), measurement, records=records)
        again = diagnose(model, TASK, (), measurement, records=records)
        assert len(server.asked) == 6
    withheld = [record for record in results.records.values() if record.withheld]
    assert [record.answer for record in withheld] == ["", ""]
    assert not any(any(record.scores.values()) for record in withheld)
    withheld_note, empty_note = sorted(again.notes[:2], reverse=True)
    assert withheld_note.startswith("2 of 6 answers under none, which count as wrong, are withheld")
    assert empty_note.startswith("1 of 6 answers under none, which count as wrong, are empty.")
    page = write_evaluation(results, tmp_path).read_text()
    assert "2 of 6 answers under none" in page
    assert page.count(" (withheld)") == 2


CHANNEL = "<|channel|>"  # of gpt-oss


@pytest.mark.parametrize(
    ("written", "answered"),
    [
        ("\n<think>no</think>yes", "yes"),
        ("Is it?</think>yes", "yes"),
        ("<think>Is it", None),
        ("yes, as <think> and </think> say.", "yes, as <think> and </think> say."),
        ("[THINK]Is it?[/THINK]yes", "yes"),
        ("<seed:think>Is it?</think></seed:think>yes", "yes"),
        ("<thought>\nIs it?\n</thought>\nyes", "yes"),
        (f"{CHANNEL}analysis<|message|>Is it?<|end|>{CHANNEL}final<|message|>yes", "yes"),
        ("<|channel>thought\nIs it?<channel|>yes", "yes"),
        (f"{CHANNEL}analysis<|message|>Is it?", None),
        (f"{CHANNEL}final<|message|>yes", "yes"),
        ("analysisIs it?assistantfinalyes", "yes"),
        ("analysis says yes", "analysis says yes"),
    ],
)
def test_thinking_in_the_text_is_no_part_of_the_answer(written: str, answered: str | None) -> None:
    after = answer_after_thinking(written)
    assert (after and after.strip()) == answered


def test_answers_are_scored_without_their_thinking() -> None:
    answers = {item.question: item.answers[0] for item in TASK.items(3, 0)}
    written = ["<think>Is it {}?</think>No idea.", "<think>Is it {}", "<think>No.</think>{}"]

    def reply(request: Request) -> Said:
        [right] = [text for question, text in answers.items() if question in request.text]
        return Said(answer(written[len(server.asked) % 3].format(right)))

    measurement = Measurement(limit=3, positions=2, max_batch_size=1)
    with serving(reply) as server:
        results = run(EndpointModel(server.url), TASK, (), measurement)
    assert sum(results.scores("none").flatten()) == 2
    assert sum(record.unfinished for record in results.records.values()) == 2
    assert "thinking" in missing_answers(results)[0]


def test_a_question_that_the_data_repeats_counts_once(tmp_path: Path) -> None:
    gold = {"answers": ["a"], "distractors": ["x", "y", "z"]}
    lines = [
        {**gold, "question": question, "gold": f"Town {town} lies on a."}
        for town in range(3)
        for question in (f"Where is {town}?", f" WHERE IS {town}?")
    ]
    data = write_lines(tmp_path / "questions.jsonl", *lines)
    assert [item.id for item in task_for_file(data).items(3, 0)] == ["0", "2", "4"]
