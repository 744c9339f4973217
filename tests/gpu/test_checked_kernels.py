"""Every kernel passes the check before its first use, so a GPU in half precision computes by it."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rag_middle.attention import applied, use_kernels
from rag_middle.layout import PromptLayout
from rag_middle.methods import APE, PINE, Method, MsPoE, RoToR, SelfExtend
from rag_middle.methods.pine.kernels import check as pine
from rag_middle.methods.rotor.kernels import launch as rotor
from rag_middle.ops import kernels, rotate_heads, spans
from rag_middle.ops.kernels import KernelCase, KernelCheck
from rag_middle.ops.rope import RotaryStyle
from tests.prompts import laid_out

pytestmark = pytest.mark.gpu

CHECKS = (pine.CHECK, rotor.CHECK, rotate_heads.HEADS_CHECK, spans.CHECK)


#: Number format, head size, query heads of a key head, rotation, soft-cap and window.
CASES = [
    (torch.bfloat16, 64, 7, RotaryStyle("half", 32), False),
    (torch.float16, 80, 4, RotaryStyle("half", 40), False),
    (torch.bfloat16, 96, 1, RotaryStyle("half", 16), True),
    (torch.bfloat16, 128, 4, RotaryStyle("half", 64), False),
    (torch.float16, 128, 8, RotaryStyle("interleaved", 32), True),
    (torch.bfloat16, 256, 2, RotaryStyle("half", 128), True),
]


@pytest.mark.parametrize(("dtype", "d", "share", "style", "limited"), CASES, ids=str)
@pytest.mark.parametrize("check", CHECKS, ids=[check.name for check in CHECKS])
def test_kernels_pass_their_check(
    check: KernelCheck, dtype: torch.dtype, d: int, share: int, style: RotaryStyle, limited: bool
) -> None:
    case = KernelCase(torch.device("cuda", 0), dtype, d, d, share, style, limited, limited)
    assert kernels.checked(check, case) is None
    first, again = ([numbers for numbers, _ in check.pairs(case)] for _ in range(2))
    assert all(map(torch.equal, first, again))


@pytest.mark.parametrize(
    "method",
    [PINE(), RoToR(), MsPoE(first_layer=0), SelfExtend(group=2, window=12), APE(temperature=0.6)],
    ids=str,
)
@pytest.mark.filterwarnings("error")
def test_a_model_in_half_precision_uses_kernels(method: Method) -> None:
    config = LlamaConfig(
        vocab_size=31, hidden_size=256, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, pad_token_id=0, eos_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval().to("cuda", torch.bfloat16)
    prompt = laid_out(PromptLayout(40, ((2, 16), (16, 30))))
    ids = torch.ones(1, 40, dtype=torch.long, device="cuda")
    for choice in ("auto", "triton"):
        with use_kernels(choice), torch.no_grad(), applied(model, method, [prompt]) as request:
            model.generate(input_ids=ids, max_new_tokens=3, do_sample=False)
        assert request.kernels_used == "triton"
