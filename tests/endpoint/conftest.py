"""No key of the machine that the tests run on."""

import pytest


@pytest.fixture(autouse=True)
def _no_key_and_short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)
