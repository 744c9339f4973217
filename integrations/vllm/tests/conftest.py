"""vLLM as the tests run it: on the CPU, in this process, without a network."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.reader import reader_path

collect_ignore_glob = [] if find_spec("vllm") else ["test_[!or]*.py"]  # all that import it
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


@pytest.fixture(scope="session")
def reader_config() -> Any:
    """Of an engine for the tests' reader."""
    from vllm.engine.arg_utils import EngineArgs

    return EngineArgs(model=str(reader_path()), max_model_len=64).create_engine_config()


@pytest.fixture
def config(reader_config: Any) -> Iterator[Any]:
    """The same, in use while modules of vLLM are made."""
    from vllm.config import set_current_vllm_config

    reader_config.compilation_config.static_forward_context.clear()  # names are taken once
    with set_current_vllm_config(reader_config):
        yield reader_config
