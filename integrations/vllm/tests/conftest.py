"""vLLM as the tests run it: on the CPU, in this process, without a network."""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

if find_spec("vllm"):  # which reads these when it is imported
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB, the least there is
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")


@pytest.fixture(scope="session")
def goldens() -> dict[str, Any]:
    """Prompts in tokens, and what rag-middle makes of them by method (see goldens.py)."""
    path = os.environ.get("RAG_MIDDLE_VLLM_GOLDENS")
    if path is None:
        pytest.skip("RAG_MIDDLE_VLLM_GOLDENS names no file: `make test-vllm` writes one")
    content: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    return content
