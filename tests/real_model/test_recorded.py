"""Every method on a pretrained model, against what it answered when it was recorded."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from rag_middle import RagMiddleModel
from rag_middle.errors import ModelNotFoundError
from rag_middle.small_model import HUB_NAME, default_model
from tests.real_model.recording import (
    RECORDED,
    greedy,
    greedy_prompt,
    likelihoods,
    load,
    method_names,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

METHODS: dict[str, Any] = json.loads(RECORDED.read_bytes())["methods"]
#: float32 sums over 500 tokens and 30 layers, in the order in which a CPU adds.
TOLERANCE = 1e-3
ALL = (0, 1, 2, 3)
#: Read a prompt many times: all four take a minute each, and `.ci/run` asks them about one.
MANY_PASSES = (
    "attention_buckets", "attention_calibration", "attention_sorting", "attn_rank", "moice",
    "permutation",
)  # fmt: skip


def asked() -> Iterator[Any]:
    """Each method with the prompts of which likelihoods are compared."""
    for method in METHODS:
        every = pytest.param(method, ALL, id=method)
        if method in MANY_PASSES:
            yield pytest.param(method, [greedy_prompt(method)], id=f"{method}, one prompt")
            every = pytest.param(method, ALL, id=method, marks=pytest.mark.thorough)
        yield every


@pytest.fixture(scope="module")
def model() -> RagMiddleModel:
    try:
        name = default_model()
    except ModelNotFoundError:
        pytest.skip("the default model is not here: make model")
    if name == HUB_NAME:
        pytest.skip("answers were recorded on the GGUF file: make model")
    return load()


def test_every_method_is_recorded() -> None:
    assert METHODS.keys() == {*method_names()}, "python -m tests.real_model.recording"


@pytest.mark.parametrize(("method", "which"), [*asked()])
def test_likelihoods_and_answers_are_as_recorded(
    model: RagMiddleModel, method: str, which: Sequence[int]
) -> None:
    recorded = METHODS[method]
    expected = [recorded["likelihoods"][index] for index in which]
    assert likelihoods(model, method, which=which) == pytest.approx(expected, abs=TOLERANCE)
    assert greedy(model, method)["tokens"][: len(recorded["tokens"])] == recorded["tokens"]


@pytest.mark.parametrize("method", ["pine", "rotor", "ape", "set_based_prompting"])
def test_document_order_changes_no_likelihood(model: RagMiddleModel, method: str) -> None:
    shuffled = likelihoods(model, method, order=(3, 0, 4, 2, 1))
    assert shuffled == pytest.approx(METHODS[method]["likelihoods"], abs=TOLERANCE)


@pytest.mark.parametrize("method", ["none", "pine"])
def test_a_batch_equals_its_rows(model: RagMiddleModel, method: str) -> None:
    alone = likelihoods(model, method, batch=1)
    assert alone == pytest.approx(METHODS[method]["likelihoods"], abs=TOLERANCE)
