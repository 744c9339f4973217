"""Documents that are read apart, and CacheBlend: against transformers, alone, empty, refused."""

import pytest
import torch

from rag_middle.attention import applied, model_traits
from rag_middle.errors import (
    MethodConfigError,
    UnsupportedArchitectureError,
    UnsupportedGenerationError,
)
from rag_middle.layout import PromptLayout
from rag_middle.methods import (
    APE,
    PINE,
    CacheBlend,
    Method,
    NoInterDocumentAttention,
    ParallelContextWindows,
    SetBasedPrompting,
    StructuredPrompting,
)
from rag_middle.methods.document_blocks import kernels
from rag_middle.ops import scores as chunks
from rag_middle.ops.scores import ScoreRule
from tests.conftest import FamilyModel
from tests.contract.cases import LONG, SHORT
from tests.contract.running import assert_refused, distance, logits_under, prompt_logits
from tests.methods.against_naive import TOLERANCE
from tests.prompts import laid_out

METHODS: dict[str, Method] = {
    "pine": PINE(),
    "kept": NoInterDocumentAttention(),
    "last": NoInterDocumentAttention(equal_positions=True),
    "start": ParallelContextWindows(),
    "end": ParallelContextWindows(right_indentation=True),
    "structured": StructuredPrompting(),
    "ape": APE(temperature=1, scale=1),
}


def test_a_set_is_a_mask_and_positions_that_any_model_takes(family_model: FamilyModel) -> None:
    """Set-based prompting beside transformers itself, told mask and positions by hand."""
    model, layout = family_model("llama"), LONG.layout
    first, last = layout.prefix_tokens, layout.suffix_start
    mask = torch.ones(layout.length, layout.length, dtype=torch.bool).tril()
    positions = torch.arange(layout.length)
    for start, end in layout.documents:
        mask[start:end, first:start] = False
        positions[start:end] = torch.arange(first, first + end - start)
    positions[last:] += first + max(layout.document_lengths) - last
    expected = model(
        input_ids=LONG.ids, attention_mask=mask[None, None], position_ids=positions[None]
    ).logits[0]
    assert distance(logits_under(model, SetBasedPrompting()), expected) < TOLERANCE


@pytest.mark.parametrize("method", METHODS)
def test_empty_documents_and_prompts_without_documents(
    method: str, family_model: FamilyModel
) -> None:
    model, ours = family_model("llama"), METHODS[method]
    plain = prompt_logits(model, LONG)
    for documents in ((), ((4, 4),), ((3, 3), (3, 19), (19, 19))):
        with applied(model, ours, [laid_out(PromptLayout(24, documents))]):
            assert distance(prompt_logits(model, LONG), plain) < TOLERANCE


@pytest.mark.parametrize("name", ["kept", "end", "structured"])
def test_empty_documents_alone_change_nothing(name: str, family_model: FamilyModel) -> None:
    """The rotary module of Phi-3.5-MoE asks for the largest of the positions it is given."""
    model = family_model("phimoe")
    with applied(model, METHODS[name], [laid_out(PromptLayout(24, ((3, 3), (3, 3))))]):
        logits = prompt_logits(model, LONG)
    assert distance(logits, prompt_logits(model, LONG)) < TOLERANCE


@pytest.mark.parametrize("family", ["gemma2", "gpt_oss", "llama"])
@pytest.mark.parametrize("alive", [1, 200, 10**6])
def test_chosen_columns_attend_as_in_the_whole_matrix(
    family: str, alive: int, family_model: FamilyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    traits = next(iter(model_traits(family_model(family)).layers.values()))
    for module in (kernels, chunks):
        monkeypatch.setattr(module, "scores_at_once", lambda device: alive)
    generator = torch.Generator().manual_seed(5)
    q = torch.randn(2, 4, 9, 8, generator=generator)
    k, v = (torch.randn(2, 2, 9, 8, generator=generator) for _ in range(2))
    sinks = torch.randn(4, generator=generator) if traits.sinks else None
    rule = ScoreRule(scale=0.4, softcap=traits.softcap)
    columns = torch.tensor([0, 3, 4, 8])
    scores = rule.cap_(q @ k.repeat_interleave(2, 1).transpose(2, 3) * rule.scale)
    scores.masked_fill_(torch.ones(9, 9).triu(1).bool(), -torch.inf)
    if sinks is not None:
        scores = torch.cat((scores, sinks[None, :, None, None].expand(2, 4, 9, 1)), dim=3)
    expected = scores.softmax(-1)[..., :9] @ v.repeat_interleave(2, 1)
    out = kernels.attend_from_columns(q[:, :, columns], k, v, columns, rule, sinks)
    assert distance(out, expected[:, :, columns]) < 1e-5


def test_what_is_refused(family_model: FamilyModel) -> None:
    model = family_model("llama")
    assert_refused(
        model, CacheBlend(check_layer=9), MethodConfigError, "do not exist", prompt=SHORT
    )
    with (
        applied(model, CacheBlend(), [SHORT.tokens]),
        pytest.raises(UnsupportedGenerationError, match="call the model"),
    ):
        model.model(SHORT.ids)
    for family in ("gpt2", "bloom", "qwen3_next"):
        with pytest.raises(UnsupportedArchitectureError):
            CacheBlend().plan((SHORT.tokens,), model_traits(family_model(family)))
