"""Numbers at the ends of their ranges and beyond: served for what they are, or refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from transformers import LlamaConfig

from rag_middle import ContextPrompt, RagMiddleModel
from rag_middle.errors import RagMiddleError, UnsupportedGenerationError
from tests.tiny_models import build, tiny
from tests.tokenizers import byte_level_bpe

PROMPT = ContextPrompt("Read.\n", ["Paris is in France.", "Lyon is a town."], "Where?")
NEW = 3


@pytest.fixture(scope="module")
def model() -> RagMiddleModel:
    tokenizer = byte_level_bpe()
    config = tiny(LlamaConfig, vocab_size=len(tokenizer), num_hidden_layers=1)
    return RagMiddleModel(build("extreme", config, "sdpa"), tokenizer)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 5e-324},
        {"temperature": 1e-40},
        {"temperature": 1.0, "top_p": 5e-324},
        {"temperature": 1e308, "top_k": 1},
        {"repetition_penalty": 1.0, "top_k": 2**70},
    ],
)
def test_what_leaves_the_likeliest_token_alone_is_greedy(
    model: RagMiddleModel, options: Mapping[str, Any]
) -> None:
    greedy = model.generate(PROMPT, max_new_tokens=NEW)
    assert model.generate(PROMPT, max_new_tokens=NEW, **options).token_ids == greedy.token_ids


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 1e308},
        {"temperature": 1.0, "seed": 2**70},
        {"temperature": 1.0, "seed": -1},
        {"temperature": 5e-324, "repetition_penalty": 1e-6},
        {"temperature": 1.0, "repetition_penalty": 1e6},
        {"num_beams": 2, "repetition_penalty": 1e6},
    ],
)
def test_what_is_odd_and_possible_is_served(
    model: RagMiddleModel, options: Mapping[str, Any]
) -> None:
    first, second = (model.generate(PROMPT, max_new_tokens=NEW, **options) for _ in range(2))
    if "seed" in options or not options.get("temperature"):
        assert first.token_ids == second.token_ids
    assert len(first.token_ids) == NEW or first.finish_reason == "stop"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 10**400),
        ("temperature", -5e-324),
        ("top_p", 2**70),
        ("top_p", -0.0),
        ("repetition_penalty", 1e308),
        ("repetition_penalty", 5e-324),
        ("num_beams", 2**70),
        ("max_new_tokens", -(2**70)),
        ("top_k", -1),
        ("seed", 0.5),
        ("seed", [1, 2]),
        ("seed", True),
    ],
)
def test_what_cannot_be_served_is_named(model: RagMiddleModel, name: str, value: Any) -> None:
    options: Any = {"temperature": 1.0 if name == "seed" else 0.0, name: value}
    with pytest.raises(UnsupportedGenerationError, match=name):
        model.generate(PROMPT, **options)


def test_lengths_beyond_any_window_are_refused(model: RagMiddleModel) -> None:
    with pytest.raises(RagMiddleError, match="does not fit"):
        model.generate(PROMPT, max_new_tokens=2**70)
    for window in (0, -1, True, 0.5, "many"):
        with pytest.raises(UnsupportedGenerationError, match="context_window must be"):
            RagMiddleModel(model.model, model.tokenizer, context_window=window)  # type: ignore[arg-type]
