"""What candidates of the channel search cost where they share the model's reading of the prompts.

    python benchmarks/channel_search.py [--tokens 500] [--prompts 8] [--rounds 5]

A random LLaMA scores as many candidates as the search scores at a time, on prompts of so many
tokens with answers of eight: each candidate reading every prompt, and all of them sharing one
reading. The two take turns in one process, and CPU seconds are counted, so that a busy machine
matters little; ``ratio`` is the median of the rounds' ratios. One thread, float32, CPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
from itertools import product
from time import process_time

import torch
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from rag_middle.calibration.searches import layer_ranges
from rag_middle.generation import RagMiddleModel
from rag_middle.layout import PromptLayout
from rag_middle.methods import PositionalHiddenStates
from rag_middle.tokens import TokenizedPrompt

LAYERS, WORDS = 8, 1000
ANSWER = 8  # tokens
FACTORS = (0.5, 0.0, -0.5, -1.0)


def llama(vocabulary: int, hidden: int) -> LlamaForCausalLM:
    """Random weights, two query heads to a key."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=hidden * 8 // 3,
        num_hidden_layers=LAYERS,
        num_attention_heads=8,
        num_key_value_heads=4,
    )
    model: LlamaForCausalLM = LlamaForCausalLM(config).eval()
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=500)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    words = models.WordLevel({str(word): word for word in range(WORDS)}, unk_token="0")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words))
    model = RagMiddleModel(llama(WORDS, arguments.hidden), tokenizer, self_check=False)
    drawn = torch.randint(WORDS, (arguments.prompts, arguments.tokens + ANSWER)).tolist()
    layout = PromptLayout(length=arguments.tokens)
    prompts = [
        TokenizedPrompt(input_ids=tuple(row[: arguments.tokens]), layout=layout) for row in drawn
    ]
    answers = [row[arguments.tokens :] for row in drawn]
    candidates = [
        PositionalHiddenStates(channels=(3,), factor=factor, layers=layers)
        for factor, layers in product(FACTORS, layer_ranges(LAYERS))
    ]
    seconds: dict[str, list[float]] = {"alone": [], "shared": []}
    largest = 0.0
    for _ in range(arguments.rounds):
        begun = process_time()
        alone = [model.score_batch(prompts, answers, method=each) for each in candidates]
        halfway = process_time()
        shared = model.score_methods(prompts, answers, candidates)
        seconds["alone"].append(halfway - begun)
        seconds["shared"].append(process_time() - halfway)
        largest = max(
            abs(one.total - other.total)
            for of_alone, of_shared in zip(alone, shared, strict=True)
            for one, other in zip(of_alone, of_shared, strict=True)
        )
    ratios = [b / a for a, b in zip(seconds["alone"], seconds["shared"], strict=True)]
    told = {
        "candidates": len(candidates),
        "prompts": arguments.prompts,
        "tokens": arguments.tokens,
        "hidden": arguments.hidden,
        "seconds_alone": round(statistics.median(seconds["alone"]), 2),
        "seconds_shared": round(statistics.median(seconds["shared"]), 2),
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in sorted(ratios)],
        "largest_difference_of_nats_per_answer": largest,
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
