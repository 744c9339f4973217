"""Shared fixtures: tiny random models, built once per session and only when asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from transformers import PreTrainedModel

from tests.families import FAMILIES

FamilyModel = Callable[..., PreTrainedModel]


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """Tiny tensors gain nothing from threads, and workers of one run share the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def family_model() -> FamilyModel:
    """``family_model(name, attn_implementation=None)``: one model per pair, shared by all tests.

    Leave it as it was: other tests get the same object. Only families that remember earlier
    inputs are built anew for each call.
    """
    models: dict[tuple[str, str], PreTrainedModel] = {}

    def get(name: str, attn_implementation: str | None = None) -> PreTrainedModel:
        family = FAMILIES[name]
        implementation = attn_implementation or family.implementations[0]
        if family.stateful or (name, implementation) not in models:
            models[name, implementation] = family.build(implementation)
        return models[name, implementation]

    return get
