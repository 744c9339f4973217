"""``rag-middle diagnose``."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.reader.questions import write_lines

FEW = ("--limit", 2, "--documents", 3, "--positions", 2, "--orders", 0, "--max-new-tokens", 2)


def test_a_model_is_diagnosed_into_a_folder(run: Run, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "diagnosis"
    shown = run("diagnose", "-m", model, *FEW, "--method", "ms_poe", "--out", out)
    assert shown.status == 0
    assert "2 questions can show nothing about positions" in shown.out
    assert "ms_poe" in shown.out
    assert "Cost: at most about" in shown.err
    assert shown.out.splitlines()[-1] == str(out / "report.html")
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "default-src 'none'" in page  # self-contained: nothing is fetched
    assert page.count('class="chart"') == page.count("data:image/svg") == 1
    assert (out / "report.png").read_bytes().startswith(b"\x89PNG")
    data = json.loads((out / "report.json").read_text(encoding="utf-8"))
    assert data["recommendation"]["label"] == "none"
    # Two questions, two positions, two methods, and two controls of the unmodified model.
    lines = (out / "records.jsonl").read_text(encoding="utf-8").splitlines()
    assert sum('"kind": "record"' in line for line in lines) == 2 * 2 * 2 + 2 * 2


def written(path: Path, count: int, words: int = 3) -> Path:
    """Questions with their gold documents, in the form of a title and a text."""
    lines = [
        {"question": f"Which is {n}?", "answers": [f"v{n}"], "title": f"T{n}",
         "text": f"Number {n} is v{n}. " + "word " * words}
        for n in range(count)
    ]  # fmt: skip
    return write_lines(path, *lines)


def test_what_was_recognised_is_said_before_the_model_is_loaded(run: Run, tmp_path: Path) -> None:
    data = written(tmp_path / "mine.jsonl", 30)
    shown = run("diagnose", "-m", tmp_path / "no model", "--data", data)
    assert "(mine.jsonl), 10 documents each: 30 questions asked." in shown.err
    assert shown.err.index("mine.jsonl") < shown.err.index("no model")
    few = written(tmp_path / "few.jsonl", 5)
    shown = run("diagnose", "-m", tmp_path / "no model", "--data", few)
    assert "Ask for 5 or fewer with documents= (--documents)" in shown.err
    assert "no model" not in shown.err


def test_gold_documents_without_the_answer_are_named(run: Run, tmp_path: Path) -> None:
    data = written(tmp_path / "mine.jsonl", 30)
    shown = run("diagnose", "-m", tmp_path / "no model", "--data", data)
    assert "holds none" not in shown.err
    lines = data.read_text().replace("Number 3 is v3", "Number 3 is lost").splitlines()
    data.write_text("\n".join(lines))
    shown = run("diagnose", "-m", tmp_path / "no model", "--data", data)
    assert "holds none of the answers, word for word, in 1 of 30 questions" in shown.err
    assert "'Which is 3?'" in shown.err
    assert shown.err.index("Which is 3?") < shown.err.index("no model")


def test_missing_matplotlib_is_refused_first(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    shown = run("diagnose", "-m", tmp_path / "no model")
    assert shown.status == 2
    assert "rag-middle[eval]" in shown.err
