"""The application in a deployment of Ray Serve, as docs/serving.md shows it, on this machine."""

import secrets
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from rag_middle import ContextPrompt
from rag_middle.generation import RagMiddleModel
from tests.test_code_blocks import ROOT, blocks
from tests.tiny_models import saved

DOCUMENTS = ["Lyon lies on the Rhône.", "Nantes lies on the Loire."]


@pytest.mark.slow
@pytest.mark.timeout(300)  # replicas import PyTorch, on as few cores as there are
@pytest.mark.filterwarnings("ignore")  # of Ray
def test_answers_of_replicas_are_those_of_generate(
    tiny_model: RagMiddleModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = pytest.importorskip("ray", reason="needs Ray (extra ray)")
    from ray import serve

    saved(tiny_model, tmp_path)
    [block] = [
        block
        for block in blocks(ROOT / "docs" / "serving.md", "python", excused=True)
        if "test_ray" in (block.excuse or "")
    ]
    code = block.code.replace("Qwen/Qwen2.5-1.5B-Instruct", str(tmp_path))
    page: dict[str, Any] = {}
    exec(code.replace('"num_gpus": 0.5', '"num_cpus": 1'), page)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # Otherwise Ray writes one into the home of whoever runs the tests.
    monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
    ray.init(
        num_cpus=2, object_store_memory=200 << 20, include_dashboard=False, log_to_driver=False
    )

    def ask(question: str) -> Any:
        message = {"role": "user", "content": question}
        body = {"model": "qwen", "messages": [message], "documents": DOCUMENTS, "max_tokens": 20}
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        return httpx.post(url, json=body, timeout=200).json()

    questions = [f"Which river? {'fox ' * index}" for index in range(8)]
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        serve.run(page["app"])
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(ask, questions))
    finally:
        ray.shutdown()
    for question, answer in zip(questions, answers, strict=True):
        prompt = ContextPrompt(documents=DOCUMENTS, suffix=question)
        expected = tiny_model.generate(prompt, method="pine", max_new_tokens=20)
        assert answer["choices"][0]["message"]["content"] == expected.text
        assert answer["rag_middle"]["documents"] == 2
