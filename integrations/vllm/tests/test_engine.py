"""The engine under a method gives the log-probabilities and answers of rag-middle.

Engines take a minute to start, so there are three, and a test asks several things of one.
"""

from __future__ import annotations

import gc
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from mixed_requests import prompt
from vllm import LLM, SamplingParams
from vllm.distributed import cleanup_dist_env_and_memory

from tests.reader import READER_PROFILE, reader_path

#: Float32 in another order of operations: vLLM's own noise against transformers is 3.5e-4.
TOLERANCE = 1e-3
GREEDY = SamplingParams(max_tokens=12, temperature=0)


@contextmanager
def engine(**options: Any) -> Iterator[LLM]:
    llm = LLM(
        model=str(reader_path()),
        dtype="float32",
        max_model_len=1536,
        max_num_seqs=8,
        enable_prefix_caching=True,
        seed=0,
        disable_log_stats=False,
        **options,
    )
    try:
        yield llm
    finally:
        del llm
        gc.collect()
        cleanup_dist_env_and_memory()


def prompts_of(goldens: dict[str, Any]) -> list[dict[str, list[int]]]:
    return [{"prompt_token_ids": list(ids)} for ids in goldens["prompts"]]


def largest_difference(llm: LLM, goldens: dict[str, Any], method: str) -> float:
    """Between the engine's log-probabilities of all prompt tokens and rag-middle's."""
    params = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0)
    outputs = llm.generate(prompts_of(goldens), params, use_tqdm=False)
    differences = [0.0]
    for ids, output, expected in zip(
        goldens["prompts"], outputs, goldens[method]["log_probabilities"], strict=True
    ):
        given = [
            entry[token].logprob
            for entry, token in zip(output.prompt_logprobs[1:], ids[1:], strict=True)
        ]
        differences += [abs(a - b) for a, b in zip(given, expected, strict=True)]
    return max(differences)


def answers(llm: LLM, goldens: dict[str, Any]) -> tuple[list[str], int]:
    """Greedy answers, and how many prompt tokens the prefix cache had."""
    outputs = llm.generate(prompts_of(goldens), GREEDY, use_tqdm=False)
    cached = sum(output.num_cached_tokens or 0 for output in outputs)
    return [output.outputs[0].text.strip() for output in outputs], cached


@pytest.mark.timeout(600)
def test_lpes_from_a_profile_compiled_and_with_a_prefix_cache(
    goldens: dict[str, Any], tmp_path: Path
) -> None:
    path = shutil.copy(READER_PROFILE, tmp_path / "lpes.json")
    with engine(hf_overrides={"rag_middle": {"profile": str(path)}}) as llm:
        path.unlink()  # read before the engine started
        assert llm.llm_engine.vllm_config.compilation_config.mode
        assert largest_difference(llm, goldens, "lpes") < TOLERANCE
        first, _ = answers(llm, goldens)
        again, cached = answers(llm, goldens)
        assert cached > 0
        assert first == again == goldens["lpes"]["answers"]
        marked = prompt(goldens, 0).marked
        (output,) = llm.chat([{"role": "user", "content": marked}], GREEDY, use_tqdm=False)
        assert output.outputs[0].text.strip() == first[0]
        (output,) = llm.generate([marked], GREEDY, use_tqdm=False)
        assert output.prompt == prompt(goldens, 0).text


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("position_interpolation", {"scale": 1.25}),
        ("attention_buckets", {"base_factors": [1.8]}),
    ],
)
def test_other_methods_from_additional_config(
    method: str, options: dict[str, Any], goldens: dict[str, Any]
) -> None:
    option = {"rag_middle": {"method": method, "options": options}}
    with engine(additional_config=option, enforce_eager=True) as llm:
        assert largest_difference(llm, goldens, method) < TOLERANCE
        assert answers(llm, goldens)[0] == goldens[method]["answers"]
