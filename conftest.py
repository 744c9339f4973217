"""What all tests share, those of the integrations and examples included."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import secrets
from collections import Counter
from collections.abc import Iterator

# Before transformers is imported: no test may ask the network for anything.
os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch

import tests.reader  # noqa: F401  # `tests` is this one, and not the folder of an integration

# Haystack and Ray tell their makers who uses them; Haystack reads this when it is imported.
os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

# Collection imports and makes what stays until the end: searching it for cycles takes seconds.
gc.disable()


def pytest_collection_finish() -> None:
    """Nor do collections of tests search it; they are rarer too: tensors count their users."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """``@pytest.mark.one_in(n)``: of a test's cases or a class's tests, every n-th is not slow."""
    cases = Counter[str]()
    for item in items:
        for node, marker in item.iter_markers_with_node("one_in"):
            marked = node.nodeid.partition("[")[0]
            if cases[marked] % marker.args[0]:
                item.add_marker(pytest.mark.slow)
            cases[marked] += 1


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Tiny tensors gain nothing from threads, and workers of one run share the cores."""
    torch.set_num_threads(1)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True, scope="session")
def _no_event_loop_of_the_main_thread() -> None:
    """Synchronous calls of LlamaIndex run their coroutines with `asyncio.run`, which cleans up.

    Otherwise its `asyncio_run` calls `asyncio.get_event_loop`, and the first such call of a process
    makes a loop that nobody closes: a ResourceWarning in whatever test collects it. Code blocks and
    examples call it too, so this stands here and not with LlamaIndex's own tests.
    """
    asyncio.set_event_loop(None)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Tests and fixtures draw the same numbers whatever ran before them, in whichever worker."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _same_seeds() -> Iterator[None]:
    """Requests without a seed draw the same ones in every run: a test fails always or never."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(secrets, "randbits", random.Random(0).getrandbits)
        yield


@pytest.fixture(autouse=True)
def _settings_stay() -> Iterator[None]:
    """No test leaves a setting of the package to the tests after it."""
    before = _settings()
    yield
    assert _settings() == before


def _settings() -> dict[str, str]:
    return {name: v for name, v in os.environ.items() if name.startswith("RAG_MIDDLE_")}
