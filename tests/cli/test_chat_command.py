"""``rag-middle chat``."""

from pathlib import Path
from typing import Any

import pytest

from rag_middle import ContextPrompt, RagMiddleModel
from rag_middle.generation import GenerationStream
from tests.cli.answering import QUESTION
from tests.cli.conftest import Finished, Run

OTHER = "Which river is Rome on, the Tiber?"


@pytest.fixture
def chat(run: Run, chat_model: Path, docs: Path) -> Run:
    """``chat(line, line, ..., turns=5)``: these lines on standard input."""

    def invoke(*lines: object, turns: int = 5) -> Finished:
        given = ("--docs", docs, "-m", chat_model, "--max-new-tokens", "6", "--turns", turns)
        return run("chat", *given, input="\n".join(map(str, lines)))

    return invoke


def test_without_turns_each_question_is_answered_on_its_own(
    chat: Run, run: Run, chat_model: Path, tmp_path: Path
) -> None:
    shown = chat(QUESTION, "", OTHER, turns=0)
    asked = [
        run("ask", question, "--docs", tmp_path / "docs", "-m", chat_model, "--max-new-tokens", "6")
        for question in (QUESTION, OTHER)
    ]
    first, second = (each.out for each in asked)
    assert shown.status == 0
    assert shown.out == f"==> {QUESTION} <==\n{first}==> {OTHER} <==\n{second}"
    assert shown.err.count("none · ") == 2


def test_the_conversation_is_remembered_and_documents_are_marked_anew(
    chat: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts: list[ContextPrompt] = []

    def stream(self: RagMiddleModel, prompt: ContextPrompt, **options: Any) -> GenerationStream:
        prompts.append(prompt)
        return original(self, prompt, **options)

    original = RagMiddleModel.stream
    monkeypatch.setattr(RagMiddleModel, "stream", stream)
    shown = chat(QUESTION, OTHER, "/new", OTHER)
    first, second, third = prompts
    answer = shown.out.splitlines()[1]
    assert second.prefix == f"{first.prefix}Question: {QUESTION}\nAnswer: {answer}\n\n"
    assert second.suffix == f"Question: {OTHER}\nAnswer:"
    assert {document.text for document in second.documents} == {
        document.text for document in first.documents
    }
    assert (third.prefix, third.suffix) == (first.prefix, second.suffix)


def test_commands_between_questions(chat: Run) -> None:
    shown = chat(QUESTION, "/sources", "/method pine", QUESTION, "/help", "/quit", OTHER)
    assert shown.status == 0
    assert OTHER not in shown.out  # after /quit
    assert shown.out.count("\nposition   score  source\n") == 3
    listed = [line.split()[2] for line in shown.out.splitlines() if ".md" in line]
    assert len(listed) == 9
    assert listed[0] == "nantes.md,"
    assert "none · " in shown.err
    assert "Method: pine" in shown.err
    assert "\npine · " in shown.err
    assert "/method   NAME [OPTION=VALUE ...]" in shown.out


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/metod pine", "Did you mean '/method'?"),
        ("/method", "/method needs a name"),
        ("Which river? " * 300, "Shorten the question"),
    ],
)
def test_what_is_refused_ends_nothing_but_is_told(chat: Run, line: str, message: str) -> None:
    shown = chat(line, OTHER)
    assert message in shown.err
    assert f"==> {OTHER} <==\n" in shown.out
    assert shown.err.count("none · ") == 1  # and under the method as before
    assert shown.status == 2  # not all of a pipe was answered
