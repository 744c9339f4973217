"""On a CUDA device: the same numbers as on the CPU, in half precision too, and linear memory."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import is_flash_attn_2_available

from rag_middle.attention import applied
from rag_middle.layout import PromptLayout
from rag_middle.methods import (
    APE,
    DSAS,
    LPES,
    PINE,
    SIW,
    Method,
    MsPoE,
    ParallelContextWindows,
    PositionalHiddenStates,
    PositionInterpolation,
    RoToR,
    SelfExtend,
    StructuredPrompting,
    ZeroTuning,
)
from tests.prompts import laid_out

pytestmark = pytest.mark.gpu

METHODS: dict[str, Method] = {
    "position_interpolation": PositionInterpolation(scale=1.5),
    "lpes": LPES(factors=1.3),
    "ms_poe": MsPoE(first_layer=0),
    "positional_hidden_states": PositionalHiddenStates(channels=(3,), factor=-1.0),
    "siw": SIW(alpha_dense=0.5, alpha_sparse=1.5, layers=(0, 1, 2)),
    "zero_tuning": ZeroTuning(factor=(0.3, 2.0), heads=(0, 3)),
    "dsas": DSAS(beta=0.3, layers=(0, 1, 2)),
    "pine": PINE(),
    "rotor": RoToR(),
    "self_extend": SelfExtend(group=2, window=12),
    "ape": APE(),
    "parallel_context_windows": ParallelContextWindows(),
    "structured_prompting": StructuredPrompting(),
}
LAYOUTS = [PromptLayout(60, ((4, 20), (20, 33), (33, 52))), PromptLayout(41, ((3, 15), (15, 36)))]


def _model(implementation: str = "sdpa") -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=211,
        hidden_size=256,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=16384,
        attn_implementation=implementation,
        pad_token_id=0,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(config).eval()
    for name, parameter in model.named_parameters():
        if "norm" not in name:
            parameter.data.normal_(std=0.1)
    return model


def _inputs(device: str) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    width = LAYOUTS[0].length
    ids = torch.randint(1, 211, (2, width), generator=generator)
    mask = torch.ones_like(ids)
    mask[1, : width - LAYOUTS[1].length] = 0
    return {"input_ids": (ids * mask).to(device), "attention_mask": mask.to(device)}


def _step_logits(model: LlamaForCausalLM, method: Method, device: str) -> torch.Tensor:
    """Logits of four greedy steps of a left-padded batch, `[4, 2, vocabulary]`."""
    with torch.no_grad(), applied(model, method, [laid_out(layout) for layout in LAYOUTS]):
        generated = model.generate(
            **_inputs(device),
            max_new_tokens=4,
            do_sample=False,
            return_dict_in_generate=True,
            output_logits=True,
        )
    return torch.stack(generated.logits).float().cpu()


@pytest.mark.parametrize("name", METHODS)
def test_cuda_gives_the_cpu_logits(name: str) -> None:
    expected = _step_logits(_model(), METHODS[name], "cpu")
    actual = _step_logits(_model().cuda(), METHODS[name], "cuda")
    # float32 on both: kernels sum in another order, on weights that amplify rounding.
    torch.testing.assert_close(actual, expected, atol=2e-3, rtol=1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", METHODS)
def test_half_precision_is_finite_and_near_the_base_precision(
    name: str, dtype: torch.dtype
) -> None:
    expected = _step_logits(_model(), METHODS[name], "cpu")[0]
    actual = _step_logits(_model().to("cuda", dtype), METHODS[name], "cuda")[0]
    assert actual.isfinite().all()
    if name != "pine":  # rounding may swap documents of nearly equal importance
        error = (actual - expected).abs().mean() / expected.abs().mean()
        assert error < 0.1  # three layers of bf16 rounding on random weights


@pytest.mark.skipif(not is_flash_attn_2_available(), reason="flash-attn is not installed")
@pytest.mark.parametrize("name", METHODS)
def test_flash_attention_2_gives_the_sdpa_logits(name: str) -> None:
    expected = _step_logits(_model().to("cuda", torch.bfloat16), METHODS[name], "cuda")[0]
    flash = _model("flash_attention_2").to("cuda", torch.bfloat16)
    actual = _step_logits(flash, METHODS[name], "cuda")[0]
    error = (actual - expected).abs().mean() / expected.abs().mean()
    assert error < 0.1  # bf16


@pytest.mark.parametrize("name", METHODS)
def test_memory_is_linear_in_the_prompt(name: str) -> None:
    model = _model().to("cuda", torch.bfloat16)
    peaks = []
    for documents in (40, 160):
        spans = tuple((20 + 95 * i, 115 + 95 * i) for i in range(documents))
        layout = PromptLayout(40 + 95 * documents, spans)
        ids = torch.randint(1, 211, (1, layout.length), device="cuda")
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        with torch.no_grad(), applied(model, METHODS[name], [laid_out(layout)]):
            model(input_ids=ids, logits_to_keep=1)
        peaks.append(torch.cuda.max_memory_allocated() - before)
    # Four times the tokens, and both more than what is computed at a time.
    assert peaks[1] < 4.5 * peaks[0] + 2**20
