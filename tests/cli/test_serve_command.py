"""``rag-middle serve``: a process of its own, from its start to its end."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import openai
import pytest

from rag_middle import ContextPrompt
from rag_middle.cli.options import group
from rag_middle.cli.serve import _limits
from rag_middle.generation import RagMiddleModel
from rag_middle.methods import NoMethod
from rag_middle.serving import ServerSettings
from tests.cli.conftest import Run

pytestmark = pytest.mark.slow


class Server:
    """A process that listens; `log` grows with what it says."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.log = ""
        self._up = threading.Event()
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()
        self._up.wait(300)
        assert "http://" in self.log, self.log
        [self.url] = re.findall(r"http://[\d.]+:\d+", self.log)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log += line
            if "http://" in line:
                self._up.set()
        self._up.set()

    def ended(self) -> int:
        """Exit status."""
        status = self.process.wait(120)
        self._reading.join(10)
        return status


@contextmanager
def started(*arguments: object, **environment: str) -> Iterator[Server]:
    command = [sys.executable, "-m", "rag_middle", "serve", "--port", "0", *map(str, arguments)]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
    )
    with process:
        try:
            yield Server(process)
        finally:
            process.kill()


def test_it_answers_until_it_is_told_to_end(chat_model: Path, tmp_path: Path) -> None:
    settings = ("--method", "pine", "--allow-method", "plain=none", "--max-new-tokens", 5)
    with started("-m", chat_model, *settings, RAG_MIDDLE_API_KEY="a-key") as server:
        assert httpx.get(f"{server.url}/health").status_code == 200
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="a-key", max_retries=0) as client:
            [listed] = client.models.list().data
            assert listed.id == chat_model.name
            assert listed.rag_middle["methods"] == ["pine", "plain"]
            documents = ["Paris is the capital of France.", "Lyon lies on the river."]
            answer = client.chat.completions.create(
                model=chat_model.name,
                messages=[{"role": "user", "content": "Which river?"}],
                extra_body={"documents": documents},
            )
            model = RagMiddleModel.from_pretrained(chat_model)
            expected = model.generate(
                ContextPrompt("", documents, "Which river?"), method="pine", max_new_tokens=5
            )
            assert answer.choices[0].message.content == expected.text
            with pytest.raises(openai.AuthenticationError):
                client.with_options(api_key="another").models.list()
        server.process.send_signal(signal.SIGTERM)
        assert server.ended() == 0
    assert "a-key" not in server.log
    assert "Which river" not in server.log
    assert "Traceback" not in server.log


def test_limits_are_those_of_the_settings() -> None:
    limits = {option.name: option.default.default for option in group(_limits)}
    settings = ServerSettings(model_name="m", methods={"none": NoMethod()})
    assert {name: getattr(settings, name) for name in limits} == limits


def test_a_key_of_markers_that_is_too_short_is_refused_at_once(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAG_MIDDLE_MARKER_KEY", " " * 40 + "short")
    shown = run("serve", "-m", "no model is looked for")
    assert shown.status == 2
    assert "RAG_MIDDLE_MARKER_KEY has 5 characters" in shown.err


def test_without_its_requirements(
    run: Run, chat_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rag_middle.cli.serve.find_spec", lambda name: None)
    shown = run("serve", "-m", chat_model)
    assert shown.status == 2
    assert "pip install 'rag-middle[serve]'" in shown.err


def test_an_address_in_use_is_refused_before_a_model_is_loaded(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        shown = run("serve", "-m", "no such model", "--port", port)
    assert shown.status == 2
    assert f"Cannot listen on 127.0.0.1:{port}" in shown.err
    assert "--port" in shown.err
