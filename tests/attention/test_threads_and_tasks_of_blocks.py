"""A method acts in the thread that opened its block, as long as it is open, and nowhere else."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig

from rag_middle import ContextPrompt, MethodConfigError, applied
from rag_middle.methods import LPES, PINE, Method
from rag_middle.tokens import encode
from tests.contract.running import in_thread
from tests.tiny_models import build, tiny
from tests.tokenizers import byte_level_bpe

T = TypeVar("T")

TOKENIZER = byte_level_bpe()
TEXT = ContextPrompt("", ["the fox", "a river", "is blue"], "Which?")
PROMPT = encode(TOKENIZER, TEXT, template="raw")
MODEL: Any = build("of threads", tiny(LlamaConfig, vocab_size=len(TOKENIZER)), "sdpa")


@torch.no_grad()
def logits() -> Tensor:
    row: Tensor = MODEL(input_ids=torch.tensor([PROMPT.input_ids])).logits[0, -1]
    return row


PLAIN = logits()


def test_a_thread_that_takes_the_context_of_a_block_is_outside() -> None:
    with applied(MODEL, PINE(), [PROMPT]):
        logits()
        copied = contextvars.copy_context()
        assert torch.equal(in_thread(lambda: copied.run(logits)), PLAIN)


@torch.no_grad()
def tokens(method: Method) -> Iterator[int]:
    """Generated in a block, as a server may read it: each token in a thread of its pool."""
    with applied(MODEL, method, [PROMPT]):
        ids, cache = torch.tensor([PROMPT.input_ids]), None
        while True:
            output = MODEL(input_ids=ids, past_key_values=cache, use_cache=True)
            ids, cache = output.logits[:, -1:].argmax(-1), output.past_key_values
            yield int(ids)


@pytest.mark.parametrize("method", [PINE(), LPES(factors=(1.0, 1.3, 1.9))])
@pytest.mark.parametrize("elsewhere", [in_thread, contextvars.Context().run])
def test_nobody_goes_on_without_the_method_unnoticed(
    method: Method, elsewhere: Callable[[Callable[[], Any]], Any]
) -> None:
    def test() -> None:
        generated = tokens(method)
        next(generated)
        with pytest.raises(MethodConfigError, match="another thread or task"):
            elsewhere(lambda: next(generated))
        assert torch.equal(logits(), PLAIN)

    contextvars.Context().run(test)


def passes() -> Iterator[Tensor]:
    with applied(MODEL, PINE(), [PROMPT]):
        yield logits()
        yield logits()


def test_a_block_that_went_on_in_another_thread_says_so_at_its_end() -> None:
    blocks = passes()
    contextvars.Context().run(next, blocks)
    assert torch.equal(in_thread(lambda: next(blocks)), PLAIN)
    with pytest.warns(UserWarning, match="ends in another thread or task"):
        assert in_thread(lambda: next(blocks, None)) is None
