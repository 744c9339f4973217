"""Methods that act around the model, on every family that can take them."""

from dataclasses import replace

import pytest

from rag_middle.attention import applied
from rag_middle.errors import MethodConfigError
from rag_middle.generation import RagMiddleModel
from rag_middle.methods import SIW, AttentionBuckets, Compose, RoToR
from rag_middle.tokens import TokenizedPrompt
from tests.conftest import FamilyModel
from tests.contract.cases import AROUND, LONG, ONE_DOCUMENT, SHORT, Prompt, expected_refusal
from tests.contract.running import distance
from tests.families import FAMILIES
from tests.tokenizers import byte_level_bpe

pytestmark = pytest.mark.thorough

TOKENIZER = byte_level_bpe()
TAKEN = [
    (family, method)
    for family in FAMILIES
    for method in AROUND
    if expected_refusal(AROUND[method], FAMILIES[family].traits, family) is None
]
#: A document that is read twice is another prompt.
ONE_IS_NEUTRAL = [(family, method) for family, method in TAKEN if not AROUND[method].rewrites]
#: Those whose plan leaves attention as it is.
PROMPTS_ONLY = [
    name for name, method in AROUND.items() if not isinstance(method, AttentionBuckets | RoToR)
]
STEPS = 3


def tokens(prompt: Prompt) -> TokenizedPrompt:
    """The prompt with a retriever's scores that are in no order."""
    count = len(prompt.layout.documents)
    ids = tuple(f"d{index}" for index in range(count))
    return replace(prompt.tokens, document_ids=ids, scores=(0.2, 0.9, 0.5)[:count])


@pytest.mark.pairs(("family", "method"), TAKEN, by="group")
@pytest.mark.one_in(5)
def test_rows_of_a_left_padded_batch_equal_prompts_alone(
    family: str, method: str, family_model: FamilyModel
) -> None:
    model = RagMiddleModel(family_model(family), TOKENIZER, method=AROUND[method])
    prompts = [tokens(SHORT), tokens(LONG)]
    together = model.batch(prompts, max_new_tokens=STEPS)
    for prompt, generation in zip(prompts, together, strict=True):
        alone = model.generate(prompt, max_new_tokens=STEPS)
        assert generation.token_ids == alone.token_ids
        assert generation.document_ids == alone.document_ids
        score = model.score(prompt, alone.token_ids)
        assert score.is_greedy  # the same tokens, fed at once


@pytest.mark.pairs(("family", "method"), ONE_IS_NEUTRAL, by="group")
@pytest.mark.one_in(3)
def test_a_prompt_with_one_document_is_read_by_the_unmodified_model(
    family: str, method: str, family_model: FamilyModel
) -> None:
    model = RagMiddleModel(family_model(family), TOKENIZER)
    prompt = tokens(ONE_DOCUMENT)
    changed = model.logits(prompt, method=AROUND[method]).log_softmax(-1)
    if method == "permutation_vote":
        assert changed.argmax() == model.logits(prompt).argmax()
    elif not AROUND[method].combines or method == "permutation":
        expected = model.logits(prompt).log_softmax(-1)
        assert distance(changed, expected) < FAMILIES[family].tolerance


@pytest.mark.parametrize("name", PROMPTS_ONLY)
def test_a_block_refuses_what_it_would_leave_undone(name: str, family_model: FamilyModel) -> None:
    model, method = family_model("llama"), AROUND[name]
    siw = SIW(alpha_dense=0.5, layers=(0,))
    for refused in (method, Compose(methods=(siw, method))):
        with (
            pytest.raises(MethodConfigError, match=f"applied.. reads prompts as .*{method.name}"),
            applied(model, refused, [tokens(LONG)]),
        ):
            pass
    with applied(model, method, [tokens(LONG)], prepared=True):
        model(LONG.ids)
