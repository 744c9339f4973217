"""``diagnose`` and ``ask`` with a model behind an HTTP address."""

import json
from pathlib import Path

import pytest

from tests.cli.answering import QUESTION
from tests.cli.conftest import Run
from tests.endpoint.server import Said, answer, events, saying, serving

pytestmark = pytest.mark.thorough

KEY = "sk-secret-0123456789abcdef"
FEW = ("--limit", 2, "--documents", 3, "--positions", 2, "--orders", 0)


@pytest.fixture(autouse=True)
def _key_and_short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)


def test_a_served_model_is_diagnosed_into_a_folder(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with serving(lambda request: Said(answer("x"))) as server:
        shown = run(
            "diagnose",
            "--endpoint",
            server.url,
            *FEW,
            "--methods",
            "long_context_reorder",
            "--out",
            out,
        )
        assert shown.status == 0, shown.err
        sent = server.asked
    # Two questions at two positions, in either order, and twice without other documents.
    assert "12 requests, about" in " ".join(shown.err.split())
    assert len(sent) == 12
    assert sent[0].headers["Authorization"] == f"Bearer {KEY}"
    data = json.loads((out / "report.json").read_text(encoding="utf-8"))
    assert data["model"]["endpoint"] == server.url
    labels = [curve["label"] for curve in data["curves"]["curves"]]
    assert labels == ["none", "long_context_reorder"]
    page = (out / "report.html").read_text(encoding="utf-8")
    assert f"Model: tiny at {server.url}" in page
    for path in out.rglob("*"):
        assert KEY.encode() not in path.read_bytes()
    assert KEY not in shown.out + shown.err


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--methods", "pine"), "pine needs the weights of the model"),
        (("--score-by", "likelihood"), "--score-by generation"),
        (("--dtype", "float16"), "--dtype says how to load a model"),
        (("--api-key-env", "sk-pasted"), "must name an environment variable that is set"),
        (("--workers", "2"), "Leave out --workers"),
    ],
)
def test_what_an_endpoint_cannot_do_is_refused_at_once(
    run: Run, tmp_path: Path, options: tuple[str, str], told: str
) -> None:
    with serving(saying("x")) as server:
        shown = run("diagnose", "--endpoint", server.url, *FEW, *options, "--out", tmp_path)
        assert not server.asked
    assert shown.status == 2
    assert told in shown.err
    assert "pasted" not in shown.err


def test_a_question_to_a_served_model(run: Run, docs: Path) -> None:
    with serving(lambda request: events("(Nantes) ", "On the Loire.")) as server:
        shown = run("ask", QUESTION, "--docs", docs, "--endpoint", server.url, "--show-prompt")
        [request] = server.asked
    assert shown.status == 0, shown.err
    assert shown.out.startswith("(Nantes) On the Loire.\n")
    assert "nantes.md" in shown.out
    assert "[cited]" in shown.out
    assert "Nantes lies on the Loire." in request.text
    assert request.text in shown.err
    assert "Warning" not in shown.err


def test_a_question_as_json_with_documents_at_both_ends(run: Run, docs: Path) -> None:
    with serving(saying(" (Nantes) On the Loire.")) as server:
        shown = run(
            *("ask", QUESTION, "--docs", docs, "--endpoint", server.url, "--json"),
            *("--method", "long_context_reorder", "--show-prompt", "--max-new-tokens", 7),
            "--no-enable-thinking",
        )
        [request] = server.asked
    assert shown.json["text"] == "(Nantes) On the Loire."
    assert shown.json["method"] == "long_context_reorder"
    assert request.text == shown.json["prompt"]
    # The second best of three stands last.
    assert [source["position"] for source in shown.json["sources"]] == [0, 2, 1]
    assert request.body["max_tokens"] == 7
    assert request.body["chat_template_kwargs"] == {"enable_thinking": False}


def test_several_questions_to_a_served_model(run: Run, docs: Path) -> None:
    with serving(lambda request: events("(Nantes) ", "On the Loire.")) as server:
        shown = run(
            *("chat", "--docs", docs, "--endpoint", server.url),
            input=f"{QUESTION}\n/method pine\n/method long_context_reorder\n/new\n{QUESTION}\n",
        )
        first, second = server.asked
    assert shown.out.count("(Nantes) On the Loire.\n") == 2
    assert shown.status == 2
    assert "pine needs the weights of the model" in shown.err
    assert "long_context_reorder" in shown.err
    assert sorted(first.text) == sorted(second.text)
    assert first.text != second.text  # the documents in another order
