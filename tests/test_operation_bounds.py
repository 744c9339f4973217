"""What methods may ask of a GPU: launches, copies, waiting, memory, counted without one."""

from typing import Any

import pytest
import torch
from transformers import DynamicCache, LlamaConfig, MistralConfig, PreTrainedModel

from benchmarks.operation_counts import (
    MethodWork,
    Passes,
    count_method,
    counted,
    prompt_of,
    without_numbers,
)
from rag_middle.attention import applied, model_traits
from rag_middle.attention.seam import MODEL_CACHE
from rag_middle.generation.prompts import arranged, branched
from rag_middle.methods import (
    APE,
    DSAS,
    LPES,
    PINE,
    SIW,
    DySCO,
    Method,
    MoICE,
    MsPoE,
    NoInterDocumentAttention,
    NoMethod,
    ParallelContextWindows,
    PositionalHiddenStates,
    PositionInterpolation,
    RoToR,
    SelfExtend,
    StructuredPrompting,
    ZeroTuning,
)
from tests.contract.cases import ACTIVE, AROUND

pytestmark = pytest.mark.thorough

LAYERS, TOKENS = 4, 3300
EVERY = tuple(range(LAYERS))
SMALL = LlamaConfig(
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=211,
)
#: Launches that a method may add to one layer: of a prefill, of a decode step. An unmodified layer
#: takes 41 and 40.
METHODS: dict[str, tuple[Method, int, int]] = {
    "position_interpolation": (PositionInterpolation(scale=1.5), 3, 3),
    "lpes": (LPES(factors=(1.1, 1.2, 1.3, 1.4)), 11, 4),
    "ms_poe": (MsPoE(first_layer=0), 20, 4),
    "positional_hidden_states": (
        PositionalHiddenStates(channels=(100,), factor=-1.0, layers=EVERY),
        36,
        4,
    ),
    "moice": (MoICE(routers="uniform", base_factors=(1, 2, 3, 4, 5, 6, 7)), 69, 13),
    "siw": (SIW(layers=EVERY), 42, 0),
    "zero_tuning": (ZeroTuning(factor=0.5), 20, 0),
    "dsas": (DSAS(layers=EVERY), 177, 0),  # 8 for each of 20 documents
    # A pass to look and one to answer; three tokens of a prompt again, 44 launches each.
    "dysco": (DySCO(heads=((LAYERS - 1, 0),)), 229, 48),
    "self_extend": (SelfExtend(group=2, window=1024), 16, 2),
    "no_inter_document_attention": (NoInterDocumentAttention(), 18, 0),
    "parallel_context_windows": (ParallelContextWindows(), 22, 3),
    "structured_prompting": (StructuredPrompting(), 44, 3),
    "ape": (APE(), 30, 4),
    "rotor": (RoToR(), 5, 0),
    "pine": (PINE(), 8, 4),
}


def replaced(config: Any, **settings: Any) -> Any:
    return type(config)(**{**config.to_dict(), **settings})


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    """A LLaMA 7B of four layers."""
    return without_numbers(
        LlamaConfig(
            hidden_size=4096,
            intermediate_size=11008,
            num_hidden_layers=LAYERS,
            num_attention_heads=32,
            vocab_size=32000,
        )
    )


@pytest.fixture(scope="module")
def shallow_models(model: PreTrainedModel) -> list[tuple[PreTrainedModel, int]]:
    """With two and three layers, and the launches of their decode step without a method."""
    models = [without_numbers(replaced(model.config, num_hidden_layers=depth)) for depth in (2, 3)]
    prompt = prompt_of(400, 4)
    return [(m, count_method(m, NoMethod(), prompt).decode.launches) for m in models]


@pytest.fixture(scope="module")
def plain(model: PreTrainedModel) -> MethodWork:
    return count_method(model, NoMethod(), prompt_of(TOKENS, 20))


@pytest.mark.one_in(10)
@pytest.mark.parametrize("name", METHODS)
def test_half_precision_stays_half_and_nothing_waits(
    name: str, model: PreTrainedModel, plain: MethodWork
) -> None:
    method, prefill, decode = METHODS[name]
    work = count_method(model, method, prompt_of(TOKENS, 20))
    for ours, theirs, bound in (
        (work.prefill, plain.prefill, prefill),
        (work.decode, plain.decode, decode),
    ):
        assert (ours.launches - theirs.launches) / LAYERS <= bound
        # Tables of a prompt may be float32, less than a tenth of one layer's keys.
        assert ours.widened_bytes - theirs.widened_bytes < 0.1 * 2 * TOKENS * 4096
        assert ours.squares == 0
        kinds = {op.kind for op in ours.operations if op.flops > 1e8}
        assert kinds <= {"half", "attention", "flash", "triton"}, "products beside the tensor cores"
    assert work.decode.uploads == 0
    assert work.prefill.uploads < 2 * LAYERS, "copies from the host, in every layer"


@pytest.mark.parametrize(
    ("method", "operations"),
    [
        (MsPoE(first_layer=0), 0),  # the model rotates
        (APE(), 1),  # two kernels for one
        (SelfExtend(group=2, window=64), 2),  # and a rotation
        (PositionalHiddenStates(channels=(100,), factor=-1.0), 1),  # the module gets other input
        (MsPoE(first_layer=0, reference_code=True), 0),
        (PositionalHiddenStates(channels=(100, 7), factor=0.5, scale_values=True), 1),
    ],
)
@pytest.mark.one_in(3)
def test_a_further_layer_costs_a_token_few_operations(
    shallow_models: list[tuple[PreTrainedModel, int]], method: Method, operations: int
) -> None:
    two, three = (
        count_method(shallow, method, prompt_of(400, 4)).decode.launches - launches
        for shallow, launches in shallow_models
    )
    assert three - two == operations


@pytest.mark.one_in(14)
@pytest.mark.parametrize("name", {**ACTIVE, **AROUND})
def test_no_layer_and_no_token_waits_for_the_device(name: str) -> None:
    """Of a padded batch: nothing is read back, and no copy from the host is made per layer."""
    method = LPES(factors=1.3) if name == "lpes" else {**ACTIVE, **AROUND}[name]
    prompts = [prompt_of(tokens, 3) for tokens in (200, 170)]
    uploads = []
    for depth in (3, 4):
        small = without_numbers(replaced(SMALL, num_hidden_layers=depth))
        runner = Passes(model_traits(small), prompts[0])
        rows = [
            branch
            for prompt in prompts
            for branch in branched(arranged(prompt, method, runner), method, runner)
        ]
        states = torch.zeros(len(rows), 200, SMALL.hidden_size, device="meta", dtype=torch.bfloat16)
        cache = DynamicCache()
        with torch.no_grad(), applied(small, method, rows, prepared=True):
            # A tensor of no numbers raises where one is asked for: `item`, `tolist`, `nonzero`.
            with counted() as prefill:
                small(inputs_embeds=states, use_cache=True, **{MODEL_CACHE: cache})
            small(inputs_embeds=states[:, :1], use_cache=True, **{MODEL_CACHE: cache})
            with counted() as decode:
                small(inputs_embeds=states[:, :1], use_cache=True, **{MODEL_CACHE: cache})
        assert decode.uploads == 0
        uploads.append(prefill.uploads)
    assert uploads[1] == uploads[0], "copies from the host in every layer"


def test_a_sliding_window_needs_no_mask_and_few_launches() -> None:
    """Self-Extend and RoToR: their keys are those of two and three windows."""
    config = MistralConfig(
        hidden_size=1024, intermediate_size=64, num_hidden_layers=2, num_attention_heads=8,
        num_key_value_heads=2, vocab_size=99, sliding_window=2048,
    )  # fmt: skip
    mistral, prompt = without_numbers(config), prompt_of(TOKENS, 20)
    theirs = count_method(mistral, NoMethod(), prompt).prefill
    for method in (SelfExtend(group=2, window=1024), RoToR()):
        ours = count_method(mistral, method, prompt).prefill
        assert ours.squares == theirs.squares
        assert (ours.launches - theirs.launches) / 2 <= 24
