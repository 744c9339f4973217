"""``rag-middle demo``."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rag_middle.demo import Demo
from tests.cli.conftest import Run
from tests.demo.conftest import made_up


@pytest.fixture
def demo(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """``demo(...)``: what is measured is made up, and no model is loaded."""

    def measure(self: Demo, questions: int, documents: int, **options: Any) -> dict[str, Any]:
        options["progress"](questions, questions)
        return dict(made_up()["measured"], command=options["command"])

    def examples(self: Demo) -> Iterator[dict[str, Any]]:
        yield from made_up()["examples"]

    monkeypatch.setattr(Demo, "__init__", lambda self, *_, **__: None)
    monkeypatch.setattr(Demo, "examples", examples)
    monkeypatch.setattr(Demo, "measure", measure)
    monkeypatch.setattr("rag_middle.demo.full_measurement", lambda: made_up()["full"])
    return lambda *arguments, **options: run(
        "demo", "--out", tmp_path / "out", *arguments, **options
    )


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Pages that were opened in a browser."""
    pages: list[str] = []
    monkeypatch.setattr("webbrowser.open", pages.append)
    return pages


def test_answers_sources_both_measurements_and_paths_are_shown(
    demo: Run, tmp_path: Path, opened: list[str]
) -> None:
    shown = demo("--questions", 4)
    assert (shown.status, opened) == (0, [])
    assert "Is it <so>?\n  right: yes" in shown.out
    assert "sources, best first: Page" in shown.out
    assert shown.out.count("50.0 [40.4, 59.6]") == 1  # few questions are measured by likelihood
    assert shown.out.count("Unmodified, log-likelihood") == 2
    assert "a small sample" in shown.out
    *_, png, html = shown.out.strip().splitlines()
    assert (png, html) == (str(tmp_path / "out" / "demo.png"), str(tmp_path / "out" / "demo.html"))
    steps = [line for line in shown.err.splitlines() if line.startswith("Step ")]
    assert [step.partition(":")[0] for step in steps] == [f"Step {n} of 4" for n in (1, 2, 3, 4)]
    assert "4 more questions by position" in steps[2]


@pytest.mark.thorough
def test_json_holds_everything_and_the_page_is_opened_if_wanted(
    demo: Run, tmp_path: Path, opened: list[str]
) -> None:
    shown = demo("--json", "--open")
    assert shown.err == ""
    assert opened == [(tmp_path / "out" / "demo.html").as_uri()]
    files = shown.json.pop("files")
    assert json.loads(Path(files["json"]).read_text())["measured"] == shown.json["measured"]
