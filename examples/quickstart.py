"""Marked documents in, answer out: first with the unmodified model, then with PINE.

Needs no download. The model is a LLaMA with four small layers and random weights, so its answers
are noise; what shows is that the order of the documents changes the answer of the unmodified model
and does not change PINE's. With a real model, only the name given to ``from_pretrained`` differs.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

from rag_middle import ContextPrompt, Document, RagMiddleModel

PROMPT = ContextPrompt(
    prefix="Answer the question from the documents.\n\n",
    documents=[
        Document("Lyon lies where the Rhône and the Saône meet.", title="Lyon"),
        Document("Nantes lies on the Loire, not far from the sea.", title="Nantes"),
        Document("The Garonne flows through Bordeaux.", title="Bordeaux"),
    ],
    suffix="Question: On which river does Nantes lie?\nAnswer:",
)


def main() -> None:
    disable_progress_bar()
    print("The prompt, with its documents marked:\n")
    print(PROMPT.marked)

    with tempfile.TemporaryDirectory() as folder:
        save_tiny_model(Path(folder))
        print("\nTokens generated for the documents in this order, and reversed:\n")
        for method in ("none", "pine"):
            model = RagMiddleModel.from_pretrained(folder, method=method)
            answers = [
                model.generate(prompt, max_new_tokens=10).token_ids
                for prompt in (PROMPT, PROMPT.permuted([2, 1, 0]))
            ]
            verdict = "the same" if answers[0] == answers[1] else "different"
            print(f"{method}:", *answers, verdict, sep="\n  ")

    print("\nRandom weights: the tokens mean nothing. That PINE's agree is the point.")


def save_tiny_model(folder: Path) -> None:
    """Write a random LLaMA and a tokenizer with one token per byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate(["<s>", "</s>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>"
    ).save_pretrained(folder)

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        initializer_range=0.3,  # large, so that attention is not uniform and order matters
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


if __name__ == "__main__":
    main()
