"""What methods may ask of a GPU: launches, copies, waiting, memory, counted without one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    DynamicCache,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedModel,
)

from rag_middle.attention import applied, model_traits, use_kernels
from rag_middle.costs.counting import counted
from rag_middle.costs.methods import (
    MethodWork,
    Passes,
    count_method,
    prompt_of,
    without_numbers,
)
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
from rag_middle.options import Kernels
from tests.contract.cases import ACTIVE, AROUND

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


@pytest.mark.one_in(5)
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


@pytest.mark.parametrize(
    ("method", "kernels", "operations"),
    [
        (MsPoE(first_layer=0), "auto", 1),  # the kernel
        (MsPoE(first_layer=0), "torch", 5),  # joined, rotated together, what is not rotated joined
        (PositionalHiddenStates(channels=(100,), factor=-1.0), "auto", 2),  # to query and key
    ],
)
def test_models_that_rotate_part_of_a_head_and_project_all_at_once(
    method: Method, kernels: Kernels, operations: int
) -> None:
    """They can neither rotate heads apart nor project values of other hidden states."""
    settings = {"hidden_size": 128, "intermediate_size": 128, "num_attention_heads": 4}
    added = []
    for depth in (2, 3):
        model = without_numbers(GPTNeoXConfig(num_hidden_layers=depth, vocab_size=99, **settings))
        with use_kernels(kernels):
            ours = count_method(model, method, prompt_of(400, 4))
        theirs = count_method(model, NoMethod(), prompt_of(400, 4))
        added.append(ours.decode.launches - theirs.decode.launches)
    assert added[1] - added[0] == operations


@pytest.mark.one_in(7)
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
                small(inputs_embeds=states, past_key_values=cache, use_cache=True)
            small(inputs_embeds=states[:, :1], past_key_values=cache, use_cache=True)
            with counted() as decode:
                small(inputs_embeds=states[:, :1], past_key_values=cache, use_cache=True)
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


@pytest.mark.slow
def test_bases_share_the_keys_of_the_cache(model: PreTrainedModel) -> None:
    """A key more costs MoICE little more traffic per token with seven bases than with one."""
    prompts = [prompt_of(tokens, 20) for tokens in (3300, 6600)]

    def traffic(method: Method) -> int:
        short, long = (count_method(model, method, prompt).decode.bytes for prompt in prompts)
        return long - short

    one, seven = (MoICE(routers="uniform", base_factors=(2.0,) * count) for count in (1, 7))
    assert traffic(seven) < 1.2 * traffic(one)  # tables and scores, beside the keys


@pytest.mark.parametrize(
    ("method", "prefill", "decode"),
    [
        (PINE(), (100, 134), (20, 41)),
        (RoToR(), (40, 60), (0, 0)),
        (MsPoE(first_layer=0), (23, 27), (3, 4)),
        (APE(), (25, 30), (10, 13)),
        (SelfExtend(group=2, window=1024), (16, 22), (11, 14)),
    ],
)
@pytest.mark.one_in(2)
def test_without_triton_more_is_launched(
    method: Method,
    prefill: tuple[int, int],
    decode: tuple[int, int],
    model: PreTrainedModel,
    plain: MethodWork,
) -> None:
    with use_kernels("torch"):
        work = count_method(model, method, prompt_of(TOKENS, 20))
    for ours, theirs, (least, most) in (
        (work.prefill, plain.prefill, prefill),
        (work.decode, plain.decode, decode),
    ):
        assert least <= (ours.launches - theirs.launches) / LAYERS <= most


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", METHODS)
def test_memory_grows_with_the_prompt_as_the_models_does(name: str, model: PreTrainedModel) -> None:
    method, _, _ = METHODS[name]
    peaks = [
        count_method(model, method, prompt_of(tokens, 20)).prefill.peak_bytes
        for tokens in (4096, 16384)
    ]
    assert peaks[1] < 4.3 * peaks[0]


#: PINE and RoToR run other code on a CPU than on a GPU.
@pytest.mark.parametrize("name", ["none", *sorted(METHODS.keys() - {"pine", "rotor"})])
@pytest.mark.one_in(9)
@pytest.mark.filterwarnings("ignore:TF32 acceleration")  # of the flag that switches oneDNN off
def test_what_is_counted_is_what_a_run_allocates(name: str) -> None:
    """Predicted peaks against the CPU's allocator, in the same number format."""
    method = METHODS[name][0] if name in METHODS else NoMethod()
    config = LlamaConfig(
        hidden_size=256, intermediate_size=512, num_hidden_layers=LAYERS, num_attention_heads=4,
        vocab_size=300,
    )  # fmt: skip
    prompt = prompt_of(600, 4)
    real = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    model_traits(real)  # the probe's own pass is not counted
    ids = torch.tensor([prompt.input_ids])
    with (
        torch.backends.mkldnn.flags(enabled=False),  # its scratch memory differs between CPUs
        torch.no_grad(),
        applied(real, method, [prompt]),
        torch.profiler.profile(profile_memory=True) as profile,
    ):
        real(ids, logits_to_keep=1)
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    alive = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        alive += event.nbytes()
        peak = max(peak, alive)
    with use_kernels("torch"):
        expected = count_method(without_numbers(config), method, prompt).prefill.peak_bytes
    assert expected == pytest.approx(peak, rel=0.05)
