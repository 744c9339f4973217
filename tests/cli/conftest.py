"""Run the command line in this process; a tiny model on disk for it to load."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rag_middle.cli.app import app
from tests.cli.answering import use_named_embedder, write_documents
from tests.tiny_models import saved, speaking
from tests.tokenizers import CHATML, byte_level_bpe


class Finished:
    """What a command left behind."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err

    @property
    def json(self) -> Any:
        """Standard output, which must be one JSON document."""
        return json.loads(self.out)


Run = Callable[..., Finished]


@pytest.fixture
def run() -> Run:
    """``run("methods", "pine", input="")``: exit status, standard output and standard error."""

    def invoke(*arguments: object, input: str | bytes | None = None) -> Finished:
        result = CliRunner().invoke(app, [str(each) for each in arguments], input=input)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Finished(result.exit_code, result.stdout, result.stderr)

    return invoke


def _saved(directory: Path, chat_template: str | None) -> Path:
    model = speaking("command line", byte_level_bpe(chat_template=chat_template))
    return saved(model, directory)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model and its tokenizer, without a chat template."""
    return _saved(tmp_path_factory.mktemp("model"), None)


@pytest.fixture(scope="session")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with a chat template."""
    return _saved(tmp_path_factory.mktemp("chat_model"), CHATML)


@pytest.fixture(autouse=True)
def _short_questions(ships_short_questions: None) -> None:
    """For commands without --data."""


@pytest.fixture
def docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three towns, for an embedder that stands in for the real one."""
    use_named_embedder(monkeypatch, tmp_path / "cache")
    return write_documents(tmp_path / "docs")


@pytest.fixture
def prompt_file(tmp_path: Path) -> Path:
    """A prompt with two documents."""
    path = tmp_path / "prompt.txt"
    path.write_text(
        "Answer from the documents.\n\n"
        "[[rm:doc]]Paris is the capital of France.[[/rm:doc]]\n\n"
        "[[rm:doc]]Lyon lies on the river.[[/rm:doc]]\n\n"
        "Question: which of the documents answers the question?",
        encoding="utf-8",
    )
    return path
