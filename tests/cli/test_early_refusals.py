"""What cannot be done is refused before a model or an embedder costs time."""

from pathlib import Path
from typing import Any

import pytest

from rag_middle import retrieval
from rag_middle.generation import loading, model
from tests.cli.conftest import Run


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """Files to name in arguments, by a short name."""
    (tmp_path / "docs" / "empty").mkdir(parents=True)
    (tmp_path / "docs" / "a.txt").write_text("Paris lies on the Seine.")
    contents: dict[str, Any] = {
        "prompt": "[[rm:doc]]Paris.[[/rm:doc]] Where?",
        "damaged": "{",
        "questions": '{"question": "q", "answers": ["a"], "gold": "x", "distractors": ["y"]}\n',
    }
    named = {"docs": str(tmp_path / "docs"), "gone": str(tmp_path / "gone")}
    for name, content in contents.items():
        path = tmp_path / f"{name}.{'txt' if name == 'prompt' else 'json'}"
        path.write_text(content)
        named[name] = str(path)
    return named


#: Arguments, and words of the refusal.
REFUSED = [
    ("diagnose --timeout 5", "--endpoint too"),
    ("diagnose --methods profile:{damaged}", "cannot be read"),
    ("diagnose --score-by likelihood --max-new-tokens 5", "nothing is generated"),
    ("serve -m m --method pinee", "Did you mean 'pine'?"),
    ("generate -m m -p {prompt} --stream --json", "leave out --json"),
    ("ask Why? --docs {gone}", "There is no file or folder"),
    ("ask Why? --docs {docs}/empty", "it is empty"),
    ("chat --docs {docs} --temperature -1", "temperature must be"),
    ("diagnose --metric charm", "has no metric 'charm'"),
    ("diagnose --data {questions} --task key_value_chain", "Unknown task"),
    ("calibrate --method lpes --data {questions}", "too few"),
    ("demo --method none", "compares the unmodified model"),
    ("generate -m m -p {prompt} --device nowhere", "There is no device 'nowhere'"),
    ("ask Why? --docs {docs} --model {gone}", "Check the path"),
]


@pytest.fixture
def nothing_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: object, **__: object) -> None:
        raise AssertionError("something was loaded")

    monkeypatch.setattr(model, "load_model", load)
    monkeypatch.setattr(loading.AutoModelForCausalLM, "from_pretrained", load)
    monkeypatch.setattr(retrieval.SentenceTransformerEmbedder, "embed", load)


@pytest.mark.usefixtures("nothing_loads")
@pytest.mark.parametrize(("line", "words"), REFUSED)
@pytest.mark.one_in(3)
def test_without_a_model(
    line: str, words: str, run: Run, files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(Path(files["docs"]).parent / "cache"))
    monkeypatch.setattr("rag_middle.small_model.default_model", lambda: "m")
    monkeypatch.setattr("rag_middle.answering.answerer.default_model", lambda: "m")
    shown = run(*(part.format(**files) for part in line.split()))
    told = shown.out if "--json" in line else shown.err
    assert (shown.status, shown.out + shown.err) == (2, told)
    assert words in " ".join(told.replace("│", " ").split())


def test_no_folder_is_made_for_what_is_refused(run: Run, tmp_path: Path) -> None:
    for line in ("diagnose --methods pyne", "demo --method pyne", "calibrate --method lpes -s a=1"):
        assert run(*line.split(), "--out", tmp_path / "out").status == 2
    assert list(tmp_path.iterdir()) == []
