"""DySCO: what its two passes leave alone, which heads it is given, and what it refuses."""

from typing import Any

import pytest
import torch

from rag_middle.attention import applied
from rag_middle.attention.seam import MODEL_CACHE
from rag_middle.errors import (
    MethodConfigError,
    UnsupportedArchitectureError,
    UnsupportedGenerationError,
)
from rag_middle.generation import RagMiddleModel
from rag_middle.methods import DySCO
from rag_middle.methods.dysco.detection import retrieval_heads, retrieval_scores
from tests.conftest import FamilyModel
from tests.contract.cases import LONG, SHORT
from tests.contract.running import (
    assert_refused,
    distance,
    generated,
    generated_under,
    recomputed_under,
)
from tests.contract.test_no_trace import raising
from tests.families import FAMILIES
from tests.reader import reader_path
from tests.tokenizers import byte_level_bpe

pytestmark = pytest.mark.thorough

METHOD = DySCO(heads=((0, 1), (1, 2)), strength=20.0, top_p=0.5)


def test_the_first_pass_ends_behind_the_last_retrieval_head(llama: Any) -> None:
    calls = [0] * len(llama.model.layers)

    def counter(index: int) -> Any:
        def count(*_: Any) -> None:
            calls[index] += 1

        return count

    with applied(llama, METHOD, [LONG.tokens]):
        cache = llama(LONG.ids, use_cache=True)[MODEL_CACHE]
        hooks = [
            layer.register_forward_pre_hook(counter(index))
            for index, layer in enumerate(llama.model.layers)
        ]
        llama(LONG.ids[:, :1], **{MODEL_CACHE: cache})
    for hook in hooks:
        hook.remove()
    assert calls == [2, 2, 1]
    assert [layer.keys.shape[2] for layer in cache.layers] == [25] * 3


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "gpt_oss"])
@pytest.mark.one_in(3)
def test_beams_keep_their_own_relevance(family: str, family_model: FamilyModel) -> None:
    """A beam has the score that its tokens have without a cache."""
    model: Any = family_model(family)
    long_memory = DySCO(heads=((0, 1), (1, 2)), strength=20.0, top_k=5, decay=1.0)
    with applied(model, long_memory, [LONG.tokens]):
        out = model.generate(
            LONG.ids,
            attention_mask=torch.ones_like(LONG.ids),
            max_new_tokens=6,
            num_beams=4,
            num_return_sequences=4,
            length_penalty=0.0,
            return_dict_in_generate=True,
            output_scores=True,
        )
    parents = out.beam_indices[:, :6]
    assert (parents[:, 1:] != parents[:, :-1]).any()  # rows have changed places
    for beam, score in zip(out.sequences[::2], out.sequences_scores[::2], strict=True):
        tokens = beam[LONG.ids.shape[1] :]
        logits = recomputed_under(model, long_memory, LONG, tokens)
        chosen = logits.log_softmax(-1).gather(1, tokens[:, None]).sum()
        assert score.item() == pytest.approx(chosen.item(), abs=1e-3)


@pytest.mark.parametrize("beams", [2, 3, 4])
@pytest.mark.one_in(3)
def test_beams_of_prompts_that_are_batched_keep_apart(beams: int) -> None:
    """With heads in the first layer, where a key says only which token stands where."""
    tokenizer = byte_level_bpe(bos=True)
    sizes = {"vocab_size": len(tokenizer), "max_position_embeddings": 4096}
    model = RagMiddleModel(FAMILIES["qwen3"].build("sdpa", **sizes).double(), tokenizer)
    method = DySCO(heads=((0, 1),), strength=20.0, top_p=0.3)
    words = ("abc", "xyz", "qqq", "mno")
    prompts = [f"{f'The {word} is in the Loire. ' * 3}\nWhere is it?" for word in words]
    how: Any = {"method": method, "num_beams": beams, "max_new_tokens": 6}
    together = model.batch(prompts, **how)
    for prompt, result in zip(prompts, together, strict=True):
        assert result.token_ids == model.generate(prompt, **how).token_ids


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_a_prompt_shorter_than_what_is_looked_at(name: str, family_model: FamilyModel) -> None:
    model = family_model(name)
    method = DySCO(heads=((0, 1),), strength=5.0, changed_prompt_tokens=20, observed_tokens=50)
    tokens, together = generated_under(model, method, [SHORT, LONG])
    for row, prompt in enumerate((SHORT, LONG)):
        alone = recomputed_under(model, method, prompt, tokens[row])
        assert distance(together[row], alone) < FAMILIES[name].tolerance


def test_scores_are_those_of_all_attention_weights(family_model: FamilyModel) -> None:
    model: Any = family_model("llama", "eager")
    seen: list[torch.Tensor] = []
    hook = model.register_forward_pre_hook(
        lambda _, args, kwargs: seen.append(kwargs["input_ids"][0]), with_kwargs=True
    )
    scores = retrieval_scores(model, prompt_tokens=12, needle_tokens=3, needles=2, seed=3)
    hook.remove()
    hits = torch.zeros_like(scores)
    rows = [ids for ids in seen if ids.shape[0] in (13, 14)]  # not the passes that examine a model
    assert len(rows) == 4
    for ids in rows:
        told = ids.shape[0] - 12
        # The needle's token that comes next stands behind the first occurrence of the last one.
        to_copy = int((ids == ids[-1]).nonzero()[0]) + 1
        assert (ids[:12] == ids[-1]).sum() == 1
        assert ids[to_copy - told : to_copy].tolist() == ids[12:].tolist()
        for layer, attention in enumerate(model(ids[None], output_attentions=True).attentions):
            hits[layer] += attention[0, :, -1].argmax(-1) == to_copy
    torch.testing.assert_close(scores, hits / 4)


def test_a_model_that_reads_has_retrieval_heads_and_generates_with_them() -> None:
    reader = RagMiddleModel.from_pretrained(reader_path())
    heads = retrieval_heads(reader.model, 4, prompt_tokens=100, needles=3)
    assert {layer for layer, _ in heads} == {1}  # the one layer that has learned to copy
    plain = reader.generate("Where is the lamp?", max_new_tokens=3).token_ids
    method = DySCO(heads=heads, strength=1.0)
    assert reader.generate("Where is the lamp?", method=method, max_new_tokens=3).token_ids == plain


@pytest.mark.parametrize("head", [(3, 0), (0, 4)])
def test_heads_of_another_model_are_refused(
    head: tuple[int, int], family_model: FamilyModel
) -> None:
    assert_refused(family_model("llama"), DySCO(heads=(head,)), MethodConfigError, "no head")


def test_a_part_of_the_model_cannot_be_read_twice(llama: Any) -> None:
    with (
        pytest.raises(UnsupportedGenerationError, match="call the model"),
        applied(llama, METHOD, [LONG.tokens]),
    ):
        llama.model(LONG.ids)


def test_layers_that_keep_a_state_are_refused(family_model: FamilyModel) -> None:
    assert_refused(family_model("qwen3_next"), METHOD, UnsupportedArchitectureError, "keep a state")


@pytest.mark.parametrize("failing_call", [1, 4])
def test_a_block_goes_on_after_an_interrupted_pass(failing_call: int, llama: Any) -> None:
    with applied(llama, METHOD, [LONG.tokens]):
        expected = generated(llama, [LONG])[1]
        with (
            pytest.raises(KeyboardInterrupt),
            raising(llama.model.layers[1], KeyboardInterrupt(), on_call=failing_call),
        ):
            generated(llama, [LONG])
        assert torch.equal(generated(llama, [LONG])[1], expected)


@pytest.mark.parametrize("original", [20, 22, 26])
@pytest.mark.parametrize("family", ["phi3", "llama_longrope"])
def test_tokens_are_read_again_with_the_frequencies_of_their_prompt(
    family: str, original: int
) -> None:
    """Prompts of 24 tokens: frequencies change before them, within them, or while generating."""
    factors = {"short_factor": [1.0 + 0.1 * i for i in range(8)]}
    factors["long_factor"] = [2.0 + i for i in range(8)]
    rope = {"rope_type": "longrope", "rope_theta": 10_000.0, "factor": 4.0} | factors
    model = FAMILIES[family].build(
        rope_parameters=rope | {"original_max_position_embeddings": original},
        original_max_position_embeddings=original,
        max_position_embeddings=128,
    )
    settings: Any = {"max_new_tokens": 8, "return_dict_in_generate": True, "output_logits": True}
    plain: Any = model.generate(LONG.ids, **settings)
    method = DySCO(heads=((0, 1), (1, 2)), strength=1.0, changed_prompt_tokens=6)
    with applied(model, method, [LONG.tokens]):
        try:
            neutral: Any = model.generate(LONG.ids, **settings)
        except UnsupportedGenerationError:
            assert family == "phi3"
            pytest.skip("this version of transformers loses Phi-3's cache where frequencies change")
    assert distance(torch.cat(neutral.logits), torch.cat(plain.logits)) < 1e-4
