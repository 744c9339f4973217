"""``rag-middle demo``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig

from rag_middle.demo import Demo
from tests.cli.answering import use_named_embedder
from tests.cli.conftest import Finished, Run
from tests.tiny_models import build, tiny
from tests.tokenizers import byte_level_bpe

pytest.importorskip("faiss")
pytest.importorskip("filelock")
pytest.importorskip("markdown_it")
pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with room for a few pages."""
    folder = tmp_path_factory.mktemp("demo_model")
    tokenizer = byte_level_bpe()
    config = tiny(LlamaConfig, vocab_size=len(tokenizer), max_position_embeddings=2048)
    build("demo", config, "sdpa").save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def demo(run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """``demo(...)``: a small demonstration of a tiny model, with further arguments."""
    use_named_embedder(monkeypatch, tmp_path / "cache")

    def invoke(*arguments: object, **options: Any) -> Finished:
        small = ("--model", model, "--questions", 2, "--top-k", 2, "--out", tmp_path / "out")
        return run("demo", *small, *arguments, **options)

    return invoke


@pytest.mark.slow
def test_answers_curves_findings_and_paths_are_shown(demo: Run, tmp_path: Path) -> None:
    shown = demo()
    assert shown.status == 0
    assert "Index: 400 chunks of 400 files: 400 added" in shown.out
    assert shown.out.count("  right: ") == 5
    assert "trained on up to" not in shown.out  # that is said of the bundled reader alone
    assert "position of the gold document" in shown.out
    assert "too few questions to say more" in shown.out
    *_, png, html = shown.out.strip().splitlines()
    assert (png, html) == (str(tmp_path / "out" / "demo.png"), str(tmp_path / "out" / "demo.html"))
    assert Path(png).read_bytes().startswith(b"\x89PNG")
    assert "<h1>" in Path(html).read_text()


@pytest.mark.slow
def test_steps_are_printed_line_by_line_where_no_terminal_shows_bars(demo: Run) -> None:
    lines = demo("--method", "siw").err.splitlines()
    steps = [line for line in lines if line.startswith("Step ")]
    assert [step.partition(":")[0] for step in steps] == [
        f"Step {number} of 4" for number in (1, 2, 3, 4)
    ]
    how_far = lines[lines.index(steps[2]) + 1 : lines.index(steps[3])]
    # Two questions at two positions under three methods, a method at a time.
    assert how_far == [f"  {done} of 12 answers" for done in (4, 8, 12)]


@pytest.mark.slow
def test_json_holds_everything_and_nothing_else_is_written(demo: Run, tmp_path: Path) -> None:
    shown = demo("--json", "--method", "siw")
    assert shown.err == ""
    described = shown.json
    labels = [curve["label"] for curve in described["curves"]["curves"]]
    assert labels == ["none", "siw", "pine"]
    assert described["findings"]
    written = json.loads(Path(described["files"]["json"]).read_text())
    assert written["curves"] == described["curves"]


@pytest.mark.slow
def test_the_page_is_opened_if_wanted(demo: Run, tmp_path: Path, monkeypatch: Any) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    demo("--json")
    assert opened == []
    demo("--json", "--open")
    assert opened == [(tmp_path / "out" / "demo.html").as_uri()]


@pytest.mark.slow
def test_an_interrupted_demonstration_leaves_no_file(
    demo: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: Demo, progress: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Demo, "measure", interrupted)
    assert demo().status != 0
    assert list(tmp_path.glob("out/*")) == []


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (("--method", "pinee"), "UnknownNameError", "Did you mean 'pine'?"),
        (("--method", "none"), "EvaluationConfigError", "--method pine"),
        (("--questions", "0"), "UsageError", "Invalid value for '--questions'"),
        (("--top-k", "1"), "UsageError", "Invalid value for '--top-k'"),
        (("-o", "no_such=1"), "MethodConfigError", "no_such"),
    ],
)
def test_values_are_checked_before_anything_is_loaded(
    demo: Run,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    kind: str,
    message: str,
) -> None:
    monkeypatch.setattr(Demo, "__init__", pytest.fail)
    error = demo(*arguments, "--json").json["error"]
    assert error["type"] == kind
    assert message in error["message"]


def test_a_folder_that_cannot_be_written_is_refused_at_once(
    demo: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Demo, "__init__", pytest.fail)
    taken = tmp_path / "taken"
    taken.write_text("")
    shown = demo("--out", taken)
    assert (shown.status, shown.out) == (2, "")
    assert f"--out {taken}" in shown.err
