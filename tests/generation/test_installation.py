"""A method that stays on a model does what it does in a request, wherever the model runs."""

from inspect import signature
from typing import Any

import pytest
import torch
from transformers import ContinuousBatchingConfig, GenerationConfig, PreTrainedModel

import rag_middle
from rag_middle import RagMiddleModel, applied
from rag_middle.calibration import calibrate, draw_examples
from rag_middle.errors import (
    MethodConfigError,
)
from rag_middle.evaluation import Measurement, run
from rag_middle.generation.sharing import origin
from rag_middle.layout import PromptLayout
from rag_middle.methods import (
    LPES,
    METHODS,
    AttentionBuckets,
    Method,
    PositionInterpolation,
)
from tests.families import FAMILIES
from tests.prompts import laid_out
from tests.reader import READER_LPES, reader_path
from tests.reader.questions import InventedDocuments

IDS = torch.arange(1, 41)[None]
LPES_3 = LPES(factors=(1.0, 1.5, 2.0))
#: Where tables differ: scalings, layer types, layers without rotation, one complex table.
KINDS = ("llama", "llama3", "gemma3_text", "cohere2", "smollm3", "phi", "glm4", "qwen3_next")


@torch.no_grad()
def logits(model: PreTrainedModel, **arguments: Any) -> torch.Tensor:
    result: torch.Tensor = model(IDS, **arguments).logits
    return result


def in_a_request(model: PreTrainedModel, method: Method) -> torch.Tensor:
    with applied(model, method, [laid_out(PromptLayout(length=IDS.shape[1]))]):
        return logits(model)


@pytest.mark.parametrize("family", KINDS)
@pytest.mark.parametrize(
    "method",
    [PositionInterpolation(scale=1.5), AttentionBuckets(base_factors=(1.8,))],
    ids=lambda method: method.name,
)
@pytest.mark.one_in(3)
def test_an_installed_method_is_the_one_of_a_request(family: str, method: Method) -> None:
    model = FAMILIES[family].build("sdpa")
    plain, expected = logits(model), in_a_request(model, method)
    installed = rag_middle.install(model, method)
    assert torch.equal(logits(model), expected)
    assert not torch.equal(expected, plain)
    installed.undo()
    installed.undo()
    assert torch.equal(logits(model), plain)


def test_layers_have_factors_of_their_own_and_the_block_ends_them() -> None:
    model = FAMILIES["llama"].build("sdpa")
    plain, expected = logits(model), in_a_request(model, LPES_3)
    with rag_middle.install(model, LPES_3):
        assert torch.equal(logits(model), expected)
    assert torch.equal(logits(model), plain)


@pytest.mark.filterwarnings("ignore")  # of transformers' own thread
@pytest.mark.slow
def test_continuous_batching_equals_generation() -> None:
    """The real `generate_batch`, which runs the model in a thread of its own."""
    model = FAMILIES["llama"].build("sdpa")
    prompts = [IDS[0, :length].tolist() for length in (40, 25, 33)]
    config = GenerationConfig(max_new_tokens=8, do_sample=False, pad_token_id=0, eos_token_id=-1)
    sizes = {"num_blocks": 64, "max_batch_tokens": 64}
    names = signature(ContinuousBatchingConfig).parameters
    small = ContinuousBatchingConfig(
        **sizes, **{"page_size" if "page_size" in names else "block_size": 16}
    )

    def answers() -> list[list[int]]:
        outputs = model.generate_batch(
            prompts, generation_config=config, continuous_batching_config=small, warmup=False
        )
        by_prompt = {tuple(out.prompt_ids): out.generated_tokens for out in outputs.values()}
        return [by_prompt[tuple(prompt)] for prompt in prompts]

    def one_by_one() -> list[list[int]]:
        rows = [model.generate(torch.tensor([ids]), generation_config=config)[0] for ids in prompts]
        return [row[len(ids) :].tolist() for row, ids in zip(rows, prompts, strict=True)]

    plain = one_by_one()
    with rag_middle.install(model, LPES_3):
        expected = one_by_one()
        assert answers() == expected != plain
    assert answers() == plain


def test_a_request_on_top_is_refused_and_none_runs_as_installed() -> None:
    model = FAMILIES["llama"].build("sdpa")
    with rag_middle.install(model, LPES_3):
        expected = logits(model)
        with pytest.raises(MethodConfigError, match="has a method installed"):
            in_a_request(model, PositionInterpolation(scale=2))
        with pytest.raises(MethodConfigError, match="has a method installed"):
            rag_middle.install(model, PositionInterpolation(scale=2))
        assert torch.equal(in_a_request(model, METHODS.get("none")()), expected)
    in_a_request(model, PositionInterpolation(scale=2))


def test_parameters_that_leave_the_number_format_are_refused_and_undone() -> None:
    model = FAMILIES["llama"].build("sdpa")
    plain = logits(model)
    with pytest.raises(MethodConfigError, match=r"scale=1e-300.* NaN or infinite"):
        rag_middle.install(model, PositionInterpolation(scale=1e-300))
    assert torch.equal(logits(model), plain)


def test_measuring_what_a_method_is_installed_on_is_refused() -> None:
    """Its own answers would be taken for the unmodified model's, and be kept as such."""
    model = RagMiddleModel.from_pretrained(reader_path())
    task, how = InventedDocuments(documents=4), Measurement(limit=2, positions=2)
    with rag_middle.install(model.model, READER_LPES):
        for measured in (
            lambda: run(model, task, measurement=how),
            lambda: calibrate(model, "siw", *draw_examples(task, "siw", questions=3, held_out=2)),
            lambda: origin(model),
        ):
            with pytest.raises(MethodConfigError, match="has a method installed"):
                measured()
    assert run(model, task, measurement=how).records
