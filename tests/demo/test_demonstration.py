"""The demonstration, with a model of random weights."""

import json
from pathlib import Path

import pytest

from rag_middle.demo import Demo, demonstration, full_measurement
from rag_middle.demo.demonstration import QUESTIONS
from rag_middle.errors import ConfigError
from rag_middle.passages import passages_path
from tests.retrieval.embedding import HashingEmbedder
from tests.tiny_models import saved, speaking
from tests.tokenizers import CHATML, byte_level_bpe

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """Over a sixth of the passages."""
    folder = tmp_path_factory.mktemp("demo")
    tokenizer = byte_level_bpe(chat_template=CHATML)
    saved(speaking("demo", tokenizer, max_position_embeddings=4096), folder / "model")
    lines = passages_path().read_text(encoding="utf-8").splitlines()
    shown = [line for line in lines if json.loads(line)["question"] in QUESTIONS]
    assert len(shown) == len(QUESTIONS)
    few = folder / "passages.jsonl"
    few.write_text("\n".join([*shown, *lines[-97:]]), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demonstration, "passages_path", lambda: few)
        yield Demo(
            folder / "model", top_k=3, embedder=HashingEmbedder(), index_folder=folder / "index"
        )


def test_questions_are_answered_with_sources_in_both_orders(demo: Demo) -> None:
    examples = list(demo.examples())
    assert sorted(example["question"] for example in examples) == sorted(QUESTIONS)
    for example in examples:
        asked = [(reply["method"], reply["best"]) for reply in example["replies"]]
        assert asked == [("none", "first"), ("none", "last"), ("pine", "anywhere")]
        scores = [source["score"] for source in example["sources"]]
        assert len(scores) == 3
        assert scores == sorted(scores, reverse=True)
    json.dumps(examples)


def test_a_measurement_says_what_was_measured_and_how_sure_it_is(demo: Demo) -> None:
    reported: list[tuple[int, int]] = []
    measured = demo.measure(3, 3, progress=lambda *counts: reported.append(counts), command="again")
    assert reported[-1] == (3 * 4, 3 * 4)  # three positions, under PINE one
    assert json.loads(json.dumps(measured)) == measured
    assert (measured["questions"], measured["documents"], measured["command"]) == (3, 3, "again")
    none, pine = measured["curves"]
    for curve in (none, pine):
        assert curve["positions"] == [0, 1, 2]
        for mean in curve["log_likelihood"]:
            assert mean["low"] <= mean["value"] <= mean["high"]
    values = [mean["value"] for mean in none["log_likelihood"]]
    assert len(set(values)) == 3
    assert measured["last_minus_first"]["value"] == pytest.approx(values[2] - values[0])
    assert pine["log_likelihood"][0] == pine["log_likelihood"][2]
    assert demo.measure(3, 3)["curves"] == measured["curves"]


def test_the_unmodified_model_is_no_method_to_compare_with_itself() -> None:
    with pytest.raises(ConfigError, match="name one"):
        Demo("nothing", method="none")


def test_the_full_measurement_is_read_where_it_is_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("rag_middle.demo.demonstration.resources.files", lambda _: tmp_path)
    assert full_measurement() is None
    (tmp_path / "full_measurement.json").write_text('{"questions": 3}')
    assert full_measurement() == {"questions": 3}
