"""Methods compute the same under any default device and number format that a program sets.

Cards of models begin with ``torch.set_default_device("cuda")``. Here the device is one without
numbers, not the model's: what is made on it by mistake cannot be read.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import LlamaConfig

from rag_middle import ContextPrompt, RagMiddleModel
from rag_middle.methods import Method, NoMethod
from tests.contract.cases import ACTIVE
from tests.tiny_models import build, tiny
from tests.tokenizers import byte_level_bpe

TOKENIZER = byte_level_bpe()
MODEL: Any = build("on a default device", tiny(LlamaConfig, vocab_size=len(TOKENIZER)), "sdpa")
PROMPTS = [
    ContextPrompt("", ["the fox", "a river", "is blue"], "Which?"),
    ContextPrompt("x", ["a b c d e"], "y"),
]


@pytest.fixture(autouse=True)
def _put_back() -> Iterator[None]:
    before = torch.get_default_dtype()
    yield
    torch.set_default_device(None)
    torch.set_default_dtype(before)


def answers(method: Method) -> list[tuple[int, ...]]:
    options: Any = {"temperature": 1.0, "seed": 1, "logprobs": True, "no_repeat_ngram_size": 2}
    model = RagMiddleModel(MODEL, TOKENIZER, method=method)
    return [g.token_ids for g in model.batch(PROMPTS, max_new_tokens=3, **options)]


@pytest.mark.parametrize("name", ["none", *ACTIVE])
@pytest.mark.one_in(2)
def test_answers_do_not_depend_on_the_device(name: str) -> None:
    method = NoMethod() if name == "none" else ACTIVE[name]
    expected = answers(method)
    torch.set_default_device("meta")
    assert answers(method) == expected
