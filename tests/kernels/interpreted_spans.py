"""Spans of keys in Triton's interpreter; `test_interpreter.py` runs this in a process."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.library import opcheck
from transformers import MistralConfig, MistralForCausalLM

from rag_middle.errors import ConfigError
from rag_middle.methods import APE, Method, SelfExtend
from rag_middle.ops import prompt_kernels, spans
from rag_middle.ops.flash import Attended
from rag_middle.ops.prompt_kernels import Tiles
from rag_middle.ops.spans import Span, SpanTables, attend_spans
from tests.kernels.interpreting import llama, step_logits
from tests.reference.spans import naive_spans

SHARP = Span(3, 17, 0.4, exponent=1.3, log_weight=-0.7)
PROMPT = [Span(0, 3, 0.3), SHARP, Span(17, -1, 0.3)]


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """So that few keys take several; what no kernel writes is NaN."""
    monkeypatch.setattr(spans, "tile_sizes", lambda *_, **__: Tiles(16, 16, 4, 1))
    monkeypatch.setattr(prompt_kernels, "_KEYS_PER_SPLIT", 8)
    torch.use_deterministic_algorithms(True)  # fills memory that is not initialised
    yield
    torch.use_deterministic_algorithms(False)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One token per row.

    Attributes:
        rows: spans of each row.
        heads: of queries.
        groups: heads of keys.
        columns: of the cache.
        d: dimensions of a head.
        dv: of values.
        rotations: of queries and keys, one or two.
    """

    rows: tuple[list[Span], ...] = (PROMPT,)
    heads: int = 4
    groups: int = 2
    columns: int = 29
    d: int = 16
    dv: int = 16
    rotations: int = 1

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Queries in both rotations, keys and values; heads behind tokens in memory."""
        generator = torch.Generator().manual_seed(self.columns + self.d)

        def drawn(tokens: int, heads: int, size: int) -> Tensor:
            shape = len(self.rows), tokens, heads, size
            return torch.randn(shape, generator=generator).transpose(1, 2)

        return (
            drawn(1, self.heads, self.d),
            drawn(1, self.heads, self.d),
            drawn(self.columns, self.groups, self.rotations * self.d),
            drawn(self.columns, self.groups, self.dv),
        )


NEAR_AND_FAR = [Span(-9, -1, 0.3, least=2), Span(0, -9, 0.3, least=2, far=True)]
CASES = {
    "prompt": Case(),
    "a key for every head": Case(heads=3, groups=3),
    "one key head for more heads than a tile": Case(heads=18, groups=1),
    "odd head sizes": Case(d=10, dv=6),
    "layouts of their own": Case(
        rows=(PROMPT, [Span(8, 9, 0.3), Span(9, 9, 0.4, exponent=0.5), Span(9, -1, 0.3)])
    ),
    "nothing but documents": Case(
        rows=([Span(0, 0, 0.3), SHARP._replace(begin=0, end=29), Span(29, -1, 0.3)],)
    ),
    "two rotations": Case(rows=(NEAR_AND_FAR,), rotations=2),
    "fewer keys than are near": Case(rows=(NEAR_AND_FAR,), rotations=2, columns=6),
    "a window within what is near": Case(
        rows=([Span(-5, -1, 0.3), Span(-5, -9, 0.3, far=True)],), rotations=2
    ),
}  # fmt: skip


def triton_run(case: Case, q: Tensor, far: Tensor, k: Tensor, v: Tensor) -> Attended:
    tables = SpanTables.of(case.rows, q.device)
    return attend_spans(q, k, v, tables, far if case.rotations == 2 else None)


@pytest.mark.parametrize("name", CASES)
def test_spans_are_read_as_naive_loops_read_them(name: str) -> None:
    case = CASES[name]
    read, (out, lse) = triton_run(case, *case.tensors()), naive_spans(case.rows, *case.tensors())
    torch.testing.assert_close(read.out, out, atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(read.lse, lse, atol=2e-6, rtol=1e-5)


def test_the_operator_has_a_fake_that_fits() -> None:
    case = CASES["two rotations"]
    tables = SpanTables.of(case.rows, torch.device("cpu"))
    checks = ("test_schema", "test_faketensor")
    opcheck(torch.ops.rag_middle.attend_spans, (*case.tensors(), *tables), test_utils=checks)


@pytest.mark.parametrize(
    "method",
    [
        APE(temperature=0.6, scale=0.8),
        APE(temperature=1.4, scale=1.0),
        SelfExtend(group=3, window=6),
        SelfExtend(group=3, window=25),  # more than the shorter prompt
        SelfExtend(group=2, window=8, log_scale_base=16),
    ],
    ids=str,
)
def test_a_batch_generates_as_with_pytorchs_operators(method: Method) -> None:
    ours, theirs = (step_logits(llama(), method, kernels) for kernels in ("triton", "torch"))
    torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("method", "unknown"),
    [
        (APE(), "no sliding window"),
        (SelfExtend(group=3, window=6), "no dropped columns"),
    ],
    ids=str,
)
def test_windows_that_spans_cannot_say_are_refused(method: Method, unknown: str) -> None:
    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=97, hidden_size=32, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, pad_token_id=0, sliding_window=20,
    )  # fmt: skip
    model = MistralForCausalLM(config).eval()
    with pytest.raises(ConfigError, match=rf"{unknown}.*kernels='auto'"):
        step_logits(model, method, "triton")
