"""An engine reads documents as rag-middle does, refuses what it cannot serve, and lives on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from mixed_requests import DOCUMENT_METHODS, OPTION, mixed, prompt
from test_engine import GREEDY, TOLERANCE, answers, engine, largest_difference
from vllm import LLM, SamplingParams
from vllm.exceptions import VLLMValidationError

from rag_middle.methods import resolve_method
from rag_middle_vllm.documents import document_request
from rag_middle_vllm.documents.admission import BOUNDS, METHOD, carried

BAD = ("unknown method", "no bounds", "bounds beyond the end", "too long", "forged salt")

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def llm(goldens: dict[str, Any]) -> Iterator[LLM]:
    with engine(hf_overrides=OPTION) as llm:
        assert llm.llm_engine.vllm_config.compilation_config.mode  # test_server.py runs without
        yield llm


def requests(
    llm: LLM, goldens: dict[str, Any], method: str, params: SamplingParams
) -> tuple[list[Any], list[SamplingParams]]:
    made = [
        document_request(
            llm.get_tokenizer(), prompt(goldens, index), resolve_method(method), params
        )
        for index in range(len(goldens["texts"]))
    ]
    return [tokens for tokens, _ in made], [given for _, given in made]


@pytest.mark.parametrize("method", DOCUMENT_METHODS)
def test_documents_are_read_as_in_rag_middle(
    llm: LLM, goldens: dict[str, Any], method: str
) -> None:
    scored = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0)
    prompts, params = requests(llm, goldens, method, scored)
    differences = [0.0]
    for tokens, output, expected in zip(
        prompts,
        llm.generate(prompts, params, use_tqdm=False),
        goldens[method]["log_probabilities"],
        strict=True,
    ):
        ids = tokens["prompt_token_ids"]
        rows = zip(output.prompt_logprobs[1:], ids[1:], expected, strict=True)
        differences += [abs(row[token].logprob - value) for row, token, value in rows]
    assert max(differences) < TOLERANCE
    # Twice: the second time documents may be cached, all of a prompt's or none.
    prompts, params = requests(llm, goldens, method, GREEDY)
    for _ in range(2):
        outputs = llm.generate(prompts, params, use_tqdm=False)
        read = [output.outputs[0].text.strip() for output in outputs]
        assert read == goldens[method]["answers"]
        for output, given in zip(outputs, params, strict=True):
            _, bounds = carried(given) or ("", (0,))
            assert not output.num_cached_tokens or output.num_cached_tokens >= bounds[-1]
    assert any(output.num_cached_tokens for output in outputs)


def test_the_goldens_tell_the_methods_apart(goldens: dict[str, Any]) -> None:
    scores = [goldens[name]["log_probabilities"][0] for name in ("none", *DOCUMENT_METHODS)]
    assert len({tuple(row) for row in scores}) == 4


def test_a_hundred_good_and_bad_requests_at_once(llm: LLM, goldens: dict[str, Any]) -> None:
    core, waiting, refused = llm.llm_engine, {}, 0
    for number, (kind, index, answer) in enumerate(mixed(goldens, BAD)):
        tokens, params = document_request(
            llm.get_tokenizer(), prompt(goldens, index), resolve_method("rotor"), GREEDY
        )
        if kind in DOCUMENT_METHODS:
            tokens, params = document_request(
                llm.get_tokenizer(), prompt(goldens, index), resolve_method(kind), GREEDY
            )
        elif kind == "none":
            tokens, params = {"prompt_token_ids": list(goldens["prompts"][index])}, GREEDY
        elif kind == "unknown method":
            params.extra_args[METHOD] = "pine"
        elif kind == "no bounds":
            del params.extra_args[BOUNDS]
        elif kind == "bounds beyond the end":
            params.extra_args[BOUNDS][-1] += 1000
        elif kind == "too long":
            tokens["prompt_token_ids"] = tokens["prompt_token_ids"] * 8
        else:
            tokens["cache_salt"] = "rag-middle:rotor"
        if answer is None:
            with pytest.raises(VLLMValidationError):
                core.add_request(str(number), tokens, params)
            refused += 1
        else:
            core.add_request(str(number), tokens, params)
            waiting[str(number)] = answer
    read = {}
    while core.has_unfinished_requests():
        for output in core.step():
            if output.finished:
                read[output.request_id] = output.outputs[0].text.strip()
    assert refused == 33
    assert read == waiting


def test_the_unmodified_model_is_what_it_was(llm: LLM, goldens: dict[str, Any]) -> None:
    """After all of the above, without a salt, and on the same tokens as one of the methods."""
    assert largest_difference(llm, goldens, "none") < TOLERANCE
    for _ in range(2):
        read, cached = answers(llm, goldens)
        assert read == goldens["none"]["answers"]
    assert cached > 0
