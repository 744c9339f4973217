"""No key of the machine that the tests run on."""

from __future__ import annotations

import pytest

from rag_middle.endpoint.server import KEY_VARIABLE


@pytest.fixture(autouse=True)
def _no_key_and_short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)
