"""What tests in Triton's interpreter share: a model, number formats as a GPU has them."""

from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from rag_middle.attention import applied, use_kernels
from rag_middle.layout import PromptLayout
from rag_middle.methods import Method
from rag_middle.options import Kernels
from tests.prompts import laid_out

LAYOUTS = [
    PromptLayout(30, ((3, 12), (12, 17), (17, 26))),
    PromptLayout(21, ((2, 10), (10, 18))),
]


def llama(**settings: object) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, pad_token_id=0, eos_token_id=None, **settings,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    for name, parameter in model.named_parameters():
        if "norm" not in name:
            parameter.data.normal_(std=0.2)
    return model


def step_logits(model: LlamaForCausalLM, method: Method, kernels: Kernels) -> Tensor:
    """Logits of three greedy steps of a left-padded batch, `[3, 2, vocabulary]`."""
    ids = torch.randint(1, 97, (2, 30), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, :9] = 0
    prompts = [laid_out(layout) for layout in LAYOUTS]
    with use_kernels(kernels), torch.no_grad(), applied(model, method, prompts) as request:
        generated = model.generate(
            input_ids=ids * mask,
            attention_mask=mask,
            max_new_tokens=3,
            do_sample=False,
            return_dict_in_generate=True,
            output_logits=True,
        )
    assert request.kernels_used == kernels
    return torch.stack(generated.logits)


def compute_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let bfloat16 be as a GPU has it: the interpreter multiplies its bits, and truncates."""
    multiply, cast = InterpreterBuilder.create_dot, InterpreterBuilder.cast_impl

    def widened(x: TensorHandle) -> TensorHandle:
        if x.dtype.scalar != tl.bfloat16:
            return x
        return TensorHandle((x.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> TensorHandle:
        return multiply(self, widened(a), widened(b), *rest)

    def cast_impl(self: Any, source: TensorHandle, kind: Any) -> TensorHandle:
        if source.dtype.scalar == tl.float32 and kind.scalar == tl.bfloat16:
            numbers = torch.from_numpy(np.ascontiguousarray(source.data)).bfloat16()
            return TensorHandle(numbers.view(torch.int16).numpy().view(np.uint16), tl.bfloat16)
        return cast(self, source, kind)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", create_dot)
    monkeypatch.setattr(InterpreterBuilder, "cast_impl", cast_impl)
