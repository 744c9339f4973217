"""A tiny model that speaks bytes, and models whose answers are made up."""

import pytest

from rag_middle.generation import RagMiddleModel
from tests.tiny_models import speaking
from tests.tokenizers import byte_level_bpe


@pytest.fixture(scope="session")
def model() -> RagMiddleModel:
    """Three layers, random weights, answers nothing sensible."""
    tokenizer = byte_level_bpe(bos=True)
    return speaking("evaluation", tokenizer, max_position_embeddings=4096)


@pytest.fixture(autouse=True)
def _short_questions(ships_short_questions: None) -> None:
    """For tasks without data."""
