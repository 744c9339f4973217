"""A tiny LLaMA that speaks bytes, and prompts for it."""

import pytest
from transformers import LlamaConfig, PreTrainedModel, PreTrainedTokenizerFast

from rag_middle import ContextPrompt, Document
from rag_middle.generation import RagMiddleModel
from tests.tiny_models import build, tiny
from tests.tokenizers import byte_level_bpe


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return byte_level_bpe(bos=True)


@pytest.fixture(scope="session")
def llama(tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    """Three layers, random weights, no end token of its own."""
    return build("generation", tiny(LlamaConfig, vocab_size=len(tokenizer)), "sdpa")


@pytest.fixture
def model(llama: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> RagMiddleModel:
    return RagMiddleModel(llama, tokenizer)


@pytest.fixture(scope="session")
def prompt() -> ContextPrompt:
    return ContextPrompt(
        "Use only the documents below.\n\n",
        [
            Document("Paris is the capital of France.", id="paris"),
            Document("Lyon lies on the river.", id="lyon"),
            Document("The quick brown fox.", id="fox"),
        ],
        "Question: which river? Answer:",
    )


@pytest.fixture(scope="session")
def prompts(prompt: ContextPrompt) -> list[ContextPrompt]:
    """Different lengths, and different numbers of documents."""
    return [
        prompt,
        ContextPrompt("Read.\n\n", ["The lazy dog jumps.", "A fox."], "Who jumps?"),
        ContextPrompt("", ["One document alone, and a longer one than the others are."], "Why?"),
        prompt.permuted([2, 0, 1]),
    ]
