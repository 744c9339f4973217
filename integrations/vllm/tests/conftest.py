"""vLLM as the tests run it: on the CPU, in this process, without a network."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

# Before vLLM is imported.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB, the least there is
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--goldens",
        type=Path,
        help="what goldens.py wrote in the environment of rag-middle; without it, no engine runs",
    )


@pytest.fixture(scope="session")
def goldens(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Prompts in tokens, and what rag-middle makes of them by method."""
    path = request.config.getoption("--goldens")
    if path is None:
        pytest.skip("needs --goldens PATH, which `make test-vllm` writes and passes")
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content
