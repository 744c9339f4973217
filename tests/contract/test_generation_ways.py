"""Ways of generating that repeat, reorder or preallocate: beams, samples, static caches."""

from typing import Any

import pytest
import torch
from torch import Tensor

from rag_middle.attention import applied
from rag_middle.errors import UnsupportedGenerationError
from rag_middle.methods import PINE
from tests.conftest import FamilyModel
from tests.contract.cases import ACTIVE, LONG, SHORT, Prompt, expected_refusal
from tests.contract.running import (
    distance,
    generated,
    generated_under,
    left_padded,
    prompt_logits,
    recomputed_under,
)
from tests.families import FAMILIES

pytestmark = pytest.mark.thorough

REPRESENTATIVES = (
    *("llama", "qwen3", "cohere", "glm4", "gpt_neox", "gemma2", "gemma3_text", "gpt_oss"),
    *("smollm3", "hunyuan_v1_dense", "qwen3_next", "deepseek_v3", "gpt2"),
)
TAKEN = [
    (family, method)
    for family in REPRESENTATIVES
    for method in ACTIVE
    if expected_refusal(ACTIVE[method], FAMILIES[family].traits, family) is None
]
# A static cache of a sliding-window layer drops documents: see PINE's refusal below.
STATIC = [
    (family, method, implementation)
    for family, methods in {
        "llama": tuple(ACTIVE),
        "hunyuan_v1_dense": ("ms_poe", "positional_hidden_states"),
        "gpt_oss": ("ms_poe", "siw", "positional_hidden_states", "dysco"),
        "gemma3_text": ("ms_poe", "siw", "positional_hidden_states", "dysco"),
    }.items()
    for method in methods
    for implementation in FAMILIES[family].implementations
]
RESCALED = ("lpes", "position_interpolation", "attention_buckets")


def _under(model: Any, method: str, prompts: list[Prompt], **settings: Any) -> Tensor:
    ids, mask = left_padded(prompts)
    with applied(model, ACTIVE[method], [prompt.tokens for prompt in prompts]):
        sequences: Tensor = model.generate(ids, attention_mask=mask, max_new_tokens=4, **settings)
    return sequences[:, ids.shape[1] :]


@pytest.mark.pairs(("family", "method"), TAKEN, by="group")
@pytest.mark.one_in(6)
def test_beams_of_a_batch_equal_beams_of_each_prompt(
    family: str, method: str, family_model: FamilyModel
) -> None:
    model = family_model(family)
    beams = {"num_beams": 3, "num_return_sequences": 3}
    together = _under(model, method, [LONG, SHORT], **beams)
    assert together.shape == (6, 4)
    for row, prompt in enumerate((LONG, SHORT)):
        alone = _under(model, method, [prompt], **beams)
        assert torch.equal(together[3 * row : 3 * row + 3], alone)


@pytest.mark.parametrize("method", ACTIVE)
@pytest.mark.one_in(3)
def test_the_score_of_a_beam_is_the_methods_probability(method: str, llama: Any) -> None:
    with applied(llama, ACTIVE[method], [LONG.tokens]):
        out = llama.generate(
            LONG.ids,
            attention_mask=torch.ones_like(LONG.ids),
            max_new_tokens=4,
            num_beams=3,
            length_penalty=0.0,
            return_dict_in_generate=True,
            output_scores=True,
        )
    logits = recomputed_under(llama, ACTIVE[method], LONG, out.sequences[0, -4:])
    chosen = logits.log_softmax(-1).gather(1, out.sequences[0, -4:, None]).sum()
    assert out.sequences_scores[0].item() == pytest.approx(chosen.item(), abs=1e-3)


@pytest.mark.parametrize("method", ACTIVE)
@pytest.mark.one_in(6)
def test_several_samples_of_a_prompt_share_its_layout(method: str, llama: Any) -> None:
    torch.manual_seed(7)
    samples = _under(llama, method, [LONG, SHORT], do_sample=True, num_return_sequences=2, top_k=2)
    for row, prompt in enumerate((LONG, LONG, SHORT, SHORT)):
        likely = recomputed_under(llama, ACTIVE[method], prompt, samples[row]).topk(2).indices
        assert all(token in pair for token, pair in zip(samples[row], likely, strict=True))


@pytest.mark.pairs(("family", "method", "implementation"), STATIC, by="group")
@pytest.mark.one_in(6)
def test_a_static_cache_gives_what_a_growing_one_gives(
    family: str, method: str, implementation: str, family_model: FamilyModel
) -> None:
    model = family_model(family, implementation)
    # Without padding no mask is made, which would hide the columns that are empty yet.
    for prompts in ([SHORT, LONG], [LONG]):
        tokens, logits = generated_under(model, ACTIVE[method], prompts)
        static_tokens, static = generated_under(
            model, ACTIVE[method], prompts, cache_implementation="static"
        )
        assert torch.equal(static_tokens, tokens)
        assert distance(static, logits) < FAMILIES[family].tolerance


@pytest.mark.parametrize("family", ["gpt_oss", "gemma3_text"])
def test_pine_refuses_a_static_cache_that_drops_documents(
    family: str, family_model: FamilyModel
) -> None:
    model = family_model(family)
    with pytest.raises(UnsupportedGenerationError, match="cache_implementation='dynamic'"):
        generated_under(model, PINE(), [LONG], cache_implementation="static")


@pytest.mark.parametrize("method", [name for name in ACTIVE if name not in RESCALED])
def test_a_prompt_in_pieces_is_refused(method: str, llama: Any) -> None:
    with pytest.raises(UnsupportedGenerationError, match="one pass"):
        generated_under(llama, ACTIVE[method], [LONG], prefill_chunk_size=8)


@pytest.mark.parametrize("method", RESCALED)
def test_rescaled_positions_take_a_prompt_in_pieces(method: str, llama: Any) -> None:
    whole, logits = generated_under(llama, ACTIVE[method], [LONG])
    pieces, pieces_logits = generated_under(llama, ACTIVE[method], [LONG], prefill_chunk_size=8)
    assert torch.equal(pieces, whole)
    assert distance(pieces_logits, logits) < FAMILIES["llama"].tolerance


@pytest.mark.pairs(("family", "method"), TAKEN, by="group")
@pytest.mark.one_in(6)
def test_a_block_can_run_its_prompt_again(
    family: str, method: str, family_model: FamilyModel
) -> None:
    model = family_model(family)
    with applied(model, ACTIVE[method], [LONG.tokens]):
        first, logits = generated(model, [LONG])
        again, again_logits = generated(model, [LONG])
        longer = Prompt(torch.cat((LONG.ids, first[:, :-1]), dim=1), LONG.layout)
        teacher_forced = prompt_logits(model, longer)[-3:]
    assert torch.equal(again, first)
    assert torch.equal(again_logits, logits)
    assert distance(teacher_forced, logits[0]) < FAMILIES[family].tolerance


@pytest.mark.parametrize("prompts", [[SHORT], [LONG, SHORT]], ids=["shorter", "more rows"])
def test_a_block_serves_no_other_prompts(prompts: list[Prompt], llama: Any) -> None:
    with applied(llama, ACTIVE["positional_hidden_states"], [LONG.tokens]):
        generated(llama, [LONG])
        with pytest.raises(UnsupportedGenerationError, match="another block"):
            generated(llama, prompts)
