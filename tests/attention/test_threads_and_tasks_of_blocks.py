"""A method acts in the thread that opened its block, as long as it is open, and nowhere else."""

from __future__ import annotations

import contextvars
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import LlamaConfig

from rag_middle import ContextPrompt, applied
from rag_middle.methods import PINE
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
