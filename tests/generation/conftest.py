"""A tiny LLaMA that speaks bytes, and prompts for it."""

from collections.abc import Callable
from functools import partial

import pytest
from transformers import LlamaConfig, PreTrainedModel, PreTrainedTokenizerFast

from rag_middle import ContextPrompt, Document
from rag_middle.generation import RagMiddleModel
from tests.tiny_models import build, tiny
from tests.tokenizers import byte_level_bpe

MakeModel = Callable[..., RagMiddleModel]


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return byte_level_bpe(bos=True)


@pytest.fixture(scope="session")
def llama(tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    """Three layers, random weights, no end token of its own."""
    return build("generation", tiny(LlamaConfig, vocab_size=len(tokenizer)), "sdpa")


@pytest.fixture
def make_model(llama: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> MakeModel:
    """``make_model(method=..., ...)``: the LLaMA with its tokenizer."""
    return partial(RagMiddleModel, llama, tokenizer)


@pytest.fixture
def model(make_model: MakeModel) -> RagMiddleModel:
    return make_model()


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
