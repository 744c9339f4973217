"""What every test relies on: no network, one thread, the same examples each time."""

from __future__ import annotations

import os

# Before anything imports huggingface_hub, which reads it once.
os.environ["HF_HUB_OFFLINE"] = "1"

import hypothesis
import pytest
import torch

hypothesis.settings.register_profile(
    "repeatable",
    derandomize=True,  # a red test stays red
    deadline=None,  # the first example pays for imports; pytest-timeout guards the whole
)
hypothesis.settings.load_profile("repeatable")

torch.set_num_threads(1)  # tests run in parallel, models are tiny


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
