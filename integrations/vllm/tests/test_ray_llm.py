"""The configuration of Ray Serve LLM that docs/serving.md shows, run to its answers.

Into the environment of `make setup-vllm`, without the versions that ``ray[llm]`` pins::

    pip install 'ray[serve]==2.60.*' pandas pyarrow tensorboardX jsonref jsonschema hf_transfer

Two minutes per method on two cores.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.reader import READER_LPES

pytest.importorskip("vllm")
pytest.importorskip("ray.serve.llm", reason="needs Ray Serve LLM", exc_type=ImportError)

pytestmark = pytest.mark.timeout(900)


@pytest.mark.parametrize("name", ["none", "lpes"])
def test_ray_serves_the_answers_of_the_notebook(
    name: str, goldens: dict[str, Any], tmp_path: Path
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    method = {"none": "none", "lpes": READER_LPES}[name]
    run = subprocess.run(
        [
            *(sys.executable, Path(__file__).with_name("ray_llm_answers.py")),
            *(os.environ["RAG_MIDDLE_VLLM_GOLDENS"], method, str(port)),
        ],
        cwd=tmp_path,  # Ray sends the working directory's files to its workers
        # Proxies of a machine with few cores are not up within Ray's usual seconds.
        env={
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parents[3]),
            "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "300",
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    answers = next(json.loads(line) for line in run.stdout.splitlines() if line.startswith("["))
    assert answers == goldens[name]["answers"]
