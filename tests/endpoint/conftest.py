"""A tiny model that speaks bytes; no key of the machine that the tests run on."""

from __future__ import annotations

import pytest
from transformers import LlamaConfig

from rag_middle.endpoint import KEY_VARIABLE
from rag_middle.generation import RagMiddleModel
from tests.tiny_models import build, tiny
from tests.tokenizers import CHATML, byte_level_bpe


@pytest.fixture(autouse=True)
def _no_key_and_short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)


@pytest.fixture(scope="session")
def model() -> RagMiddleModel:
    """Three layers and random weights: it answers nothing sensible, and not always the same."""
    tokenizer = byte_level_bpe(chat_template=CHATML)
    config = tiny(LlamaConfig, vocab_size=len(tokenizer), max_position_embeddings=4096)
    return RagMiddleModel(build("endpoint", config, "sdpa"), tokenizer)
