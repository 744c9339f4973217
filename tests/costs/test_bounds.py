"""What methods may ask of a GPU: launches, copies, waiting, memory, counted without one."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from rag_middle.attention import choose_kernels
from rag_middle.costs.methods import MethodWork, count_method, prompt_of, without_numbers
from rag_middle.methods import (
    APE,
    LPES,
    PINE,
    SIW,
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
)

LAYERS, TOKENS = 4, 3300
EVERY = tuple(range(LAYERS))
#: Launches that a method may add to one layer: of a prefill, of a decode step. An unmodified layer
#: takes 41 and 40.
METHODS: dict[str, tuple[Method, int, int]] = {
    "position_interpolation": (PositionInterpolation(scale=1.5), 3, 3),
    "lpes": (LPES(factors=(1.1, 1.2, 1.3, 1.4)), 11, 4),
    "ms_poe": (MsPoE(first_layer=0), 27, 10),
    "positional_hidden_states": (
        PositionalHiddenStates(channels=(100,), factor=-1.0, layers=EVERY),
        38,
        8,
    ),
    "moice": (MoICE(routers="uniform", base_factors=(1, 2, 3, 4, 5, 6, 7)), 104, 13),
    "siw": (SIW(layers=EVERY), 42, 0),
    "self_extend": (SelfExtend(group=2, window=1024), 21, 19),
    "no_inter_document_attention": (NoInterDocumentAttention(), 18, 0),
    "parallel_context_windows": (ParallelContextWindows(), 22, 3),
    "structured_prompting": (StructuredPrompting(), 45, 14),
    "ape": (APE(), 29, 13),
    "rotor": (RoToR(), 60, 0),
    "pine": (PINE(), 8, 4),
}


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
def plain(model: PreTrainedModel) -> MethodWork:
    return count_method(model, NoMethod(), prompt_of(TOKENS, 20))


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
        assert kinds <= {"half", "attention"}, "products beside the tensor cores"
    assert work.decode.uploads == 0
    assert work.prefill.uploads < 2 * LAYERS, "copies from the host, in every layer"


def test_bases_share_the_keys_of_the_cache(model: PreTrainedModel) -> None:
    """A key more costs MoICE little more traffic per token with seven bases than with one."""
    prompts = [prompt_of(tokens, 20) for tokens in (3300, 6600)]

    def traffic(method: Method) -> int:
        short, long = (count_method(model, method, prompt).decode.bytes for prompt in prompts)
        return long - short

    one, seven = (MoICE(routers="uniform", base_factors=(2.0,) * count) for count in (1, 7))
    assert traffic(seven) < 1.2 * traffic(one)  # tables and scores, beside the keys


def test_without_triton_pine_launches_more(model: PreTrainedModel, plain: MethodWork) -> None:
    choose_kernels(model, "torch")
    work = count_method(model, PINE(), prompt_of(TOKENS, 20))
    choose_kernels(model, "auto")
    assert 100 < (work.prefill.launches - plain.prefill.launches) / LAYERS <= 132
    assert 20 < (work.decode.launches - plain.decode.launches) / LAYERS <= 41


@pytest.mark.parametrize("name", METHODS)
def test_memory_grows_with_the_prompt_as_the_models_does(name: str, model: PreTrainedModel) -> None:
    method, _, _ = METHODS[name]
    peaks = [
        count_method(model, method, prompt_of(tokens, 20)).prefill.peak_bytes
        for tokens in (4096, 16384)
    ]
    assert peaks[1] < 4.3 * peaks[0]


def test_what_is_counted_is_what_a_run_allocates() -> None:
    """Predicted peaks against the CPU's allocator, in the same number format."""
    config = LlamaConfig(
        hidden_size=256, intermediate_size=512, num_hidden_layers=3, num_attention_heads=4,
        vocab_size=300,
    )  # fmt: skip
    prompt = prompt_of(600, 4)
    real = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    ids = torch.tensor([prompt.input_ids])
    with torch.no_grad(), torch.profiler.profile(profile_memory=True) as profile:
        real(ids, logits_to_keep=1)
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    alive = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        alive += event.nbytes()
        peak = max(peak, alive)
    counted = count_method(without_numbers(config), NoMethod(), prompt).prefill.peak_bytes
    assert counted == pytest.approx(peak, rel=0.15)
