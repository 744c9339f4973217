"""Cost of constrained decoding per token: the mask alone, over a large vocabulary, on a CPU.

python benchmarks/constrained_decoding.py
"""

from __future__ import annotations

import json
import random
from statistics import median
from time import perf_counter

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rag_middle.generation.constrained import Constrained, Constraint
from rag_middle.tools.grammars import answer_grammar

SCHEMA = {
    "type": "object",
    "properties": {
        "answer": {"type": "string"},
        "sources": {"type": "array", "items": {"type": "string"}},
        "certain": {"type": "boolean"},
    },
    "required": ["answer", "sources", "certain"],
}
ANSWER = {"answer": "Nantes lies on the Loire. " * 8, "sources": ["a", "b"] * 8, "certain": True}


def tokenizer(size: int) -> PreTrainedTokenizerFast:
    """Bytes, and drawn words up to `size` tokens."""
    drawn = random.Random(0)
    vocabulary = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    while len(vocabulary) < size - 1:
        word = "".join(drawn.choices("abcdefghijklmnopqrstuvwxyz", k=drawn.randint(2, 9)))
        vocabulary.setdefault(drawn.choice(("", "Ġ")) + word, len(vocabulary))
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["</s>"])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>")


def main() -> None:
    """Print a table."""
    torch.set_num_threads(1)
    print("| vocabulary | it compiled, once | schema compiled | per token | of it masking |")
    print("| ---: | ---: | ---: | ---: | ---: |")
    for size in (32_000, 152_000):
        measure(size)


def measure(size: int) -> None:
    """Print a row."""
    own = tokenizer(size)
    form = answer_grammar({"type": "json_schema", "json_schema": {"schema": SCHEMA}})
    assert form is not None
    ends = [own.convert_tokens_to_ids("</s>")]
    times = []
    for _ in range(2):  # the second finds the vocabulary compiled
        started = perf_counter()
        constraint = Constraint(own, len(own), ends, form)
        times.append(perf_counter() - started)
    ids = own.encode(json.dumps(ANSWER), add_special_tokens=False)
    # A prompt of 8192 tokens, which is never looked at.
    row = torch.zeros(1, 8192, dtype=torch.long)
    constrained = Constrained(constraint, 1, row.shape[1])
    scores = torch.randn(1, len(own))
    per_token, masking = [], []
    for token in ids:
        started = perf_counter()
        allowed = constrained(row, scores)
        per_token.append(perf_counter() - started)
        assert allowed[0, token] > -torch.inf
        started = perf_counter()
        scores.masked_fill(allowed.isneginf(), -torch.inf)
        masking.append(perf_counter() - started)
        row = torch.cat([row, torch.tensor([[token]])], dim=1)
    print(
        f"| {size} | {times[0] - times[1]:.2f} s | {1e3 * times[1]:.1f} ms "
        f"| {1e3 * median(per_token):.2f} ms | {1e3 * median(masking):.2f} ms |"
    )


if __name__ == "__main__":
    main()
