"""An engine reads documents as rag-middle does, refuses what it cannot serve, and lives on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from mixed_requests import DOCUMENT_METHODS, OPTION, prompt
from test_engine import GREEDY, TOLERANCE, engine
from vllm import LLM, SamplingParams
from vllm.exceptions import VLLMValidationError

from rag_middle.methods import resolve_method
from rag_middle_vllm.documents import document_request
from rag_middle_vllm.documents.admission import BOUNDS, METHOD, carried

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def llm(goldens: dict[str, Any]) -> Iterator[LLM]:
    with engine(hf_overrides=OPTION) as llm:
        assert llm.llm_engine.vllm_config.compilation_config.mode  # test_server.py runs without
        yield llm


def requests(llm: LLM, goldens: dict[str, Any], params: SamplingParams) -> Iterator[Any]:
    """Each prompt as it is and under each method: golden, index, prompt in tokens, parameters."""
    for index, ids in enumerate(goldens["prompts"]):
        yield goldens["none"], index, {"prompt_token_ids": list(ids)}, params
        for name in DOCUMENT_METHODS:
            asked, method = prompt(goldens, index), resolve_method(name)
            made = document_request(llm.get_tokenizer(), asked, method, params)
            yield goldens[name], index, *made


def test_requests_of_all_methods_and_none_at_once(llm: LLM, goldens: dict[str, Any]) -> None:
    core, plain = llm.llm_engine, {"prompt_token_ids": list(goldens["prompts"][0])}
    core.add_request("good", plain, GREEDY)
    core.step()
    for salt, carries in (
        ({}, {METHOD: "rotor"}),
        ({}, {METHOD: "rotor", BOUNDS: [1, len(plain["prompt_token_ids"]) + 1]}),
        ({"cache_salt": "rag-middle:rotor"}, {}),
    ):
        with pytest.raises(VLLMValidationError):
            core.add_request("bad", {**plain, **salt}, SamplingParams(extra_args=carries))
    while core.has_unfinished_requests():
        [output] = core.step()
    assert output.outputs[0].text.strip() == goldens["none"]["answers"][0]
    scored = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0)
    made = zip(*requests(llm, goldens, scored), strict=True)
    expected, indices, prompts, params = map(list, made)
    outputs = llm.generate(prompts, params, use_tqdm=False)
    differences = [0.0]
    for golden, index, tokens, output in zip(expected, indices, prompts, outputs, strict=True):
        ids, values = tokens["prompt_token_ids"], golden["log_probabilities"][index]
        rows = zip(output.prompt_logprobs[1:], ids[1:], values, strict=True)
        differences += [abs(row[token].logprob - value) for row, token, value in rows]
    assert max(differences) < TOLERANCE
    # Twice: the second time documents may be cached, all of a prompt's or none.
    made = zip(*requests(llm, goldens, GREEDY), strict=True)
    expected, indices, prompts, params = map(list, made)
    answers = [golden["answers"][index] for golden, index in zip(expected, indices, strict=True)]
    for _ in range(2):
        outputs = llm.generate(prompts, params, use_tqdm=False)
        assert [output.outputs[0].text.strip() for output in outputs] == answers
        for output, given in zip(outputs, params, strict=True):
            _, bounds = carried(given) or ("", (0,))
            assert not output.num_cached_tokens or output.num_cached_tokens >= bounds[-1]
    for kind in range(4):  # none's, and those of each method
        assert any(output.num_cached_tokens for output in outputs[kind::4])


def test_the_goldens_tell_the_methods_apart(goldens: dict[str, Any]) -> None:
    scores = [goldens[name]["log_probabilities"][0] for name in ("none", *DOCUMENT_METHODS)]
    assert len({tuple(row) for row in scores}) == 4
