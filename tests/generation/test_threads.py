"""Requests of many threads on one model."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from transformers import PreTrainedModel, PreTrainedTokenizerFast

from rag_middle import ContextPrompt
from rag_middle.generation import RagMiddleModel
from rag_middle.methods import LPES

SCALED = LPES(factors=1.5)
METHODS = ("none", "pine", "ms_poe", SCALED, "siw", [SCALED, "siw"], "attention_buckets", "pine")


def request(number: int) -> ContextPrompt:
    documents = [f"Document about {number * 7 + i}. " * (1 + i % 3) for i in range(2 + number % 4)]
    return ContextPrompt(f"Read these, {number}.\n", documents, f"Which is {number}?")


def test_eight_threads_get_what_each_gets_alone(
    llama: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    models = [RagMiddleModel(llama, tokenizer), RagMiddleModel(llama, tokenizer, method="pine")]

    def generate(number: int) -> tuple[object, ...]:
        model, method = models[number % 2], METHODS[number % len(METHODS)]
        prompt = request(number)
        options = {"method": method, "max_new_tokens": 6, "temperature": 0.9 * (number % 3)}
        whole = model.generate(prompt, seed=number, **options)  # type: ignore[arg-type]
        stream = model.stream(prompt, seed=number, **options)  # type: ignore[arg-type]
        score = model.score(prompt, " fox", method=method)
        return whole.text, "".join(stream), score.log_probabilities, model.count_tokens(prompt)

    alone = [generate(number) for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(generate, range(8)))
    assert together == alone
    assert all(whole == streamed for whole, streamed, *_ in alone)
    assert len({whole for whole, *_ in alone}) > 5  # the requests do differ
