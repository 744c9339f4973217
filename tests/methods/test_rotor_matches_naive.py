"""RoToR in a whole model against its definition, and what its orders do not depend on."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM

from rag_middle.errors import PromptError
from rag_middle.generation import RagMiddleModel
from rag_middle.generation.forward import next_token_logits
from rag_middle.layout import PromptLayout
from rag_middle.methods import RoToR
from rag_middle.methods.rotor.kernels.circle import circle_distances
from rag_middle.tokens import TokenizedPrompt
from tests.conftest import FamilyModel
from tests.contract.cases import VOCABULARY, Prompt
from tests.contract.running import distance
from tests.methods.against_naive import WAYS, assert_equal_to_naive
from tests.reference.rotor import NaiveRotor
from tests.tokenizers import byte_level_bpe

#: The second is padded on the left; the third has neither prefix nor suffix worth the name.
PROMPTS = (
    Prompt.random(PromptLayout(15, ((2, 5), (5, 9), (9, 11))), seed=31),
    Prompt.random(PromptLayout(9, ((1, 3), (3, 3), (3, 7))), seed=32),
    Prompt.random(PromptLayout(10, ((0, 4), (4, 9))), seed=33),
)
FAMILIES = ("llama", "gemma2", "gemma3_text", "gpt_oss", "smollm3", "gpt_neox", "cohere")


@pytest.mark.parametrize(("model", "implementation"), WAYS)
def test_equals_the_naive_twin(model: str, implementation: str, family_model: FamilyModel) -> None:
    assert_equal_to_naive(
        family_model(model, implementation),
        RoToR(order="given"),
        NaiveRotor,
        PROMPTS,
        documents=lambda prompt: prompt.layout.documents,
    )


def test_keys_stand_behind_a_query_as_on_the_circle_that_ends_with_its_document() -> None:
    prefix, documents = 3, [(0, 2), (2, 7), (7, 8), (8, 12)]
    total = documents[-1][1]
    for index, (start, end) in enumerate(documents):
        turned = [*documents[index + 1 :], *documents[: index + 1]]
        circle = [*range(-prefix, 0), *(token for span in turned for token in range(*span))]
        place = {key: number for number, key in enumerate(circle)}
        distances = circle_distances(prefix, total, start, end, torch.device("cpu"))
        assert distances.tolist() == [
            [place[query] - place[key] for key in range(-prefix, total)]
            for query in range(start, end)
        ]


def test_a_window_wider_than_the_prompt_changes_nothing() -> None:
    settings = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    settings |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": VOCABULARY}
    outputs = []
    for window in (None, 1000):  # with a window documents are read one by one
        torch.manual_seed(0)
        model = MistralForCausalLM(MistralConfig(**settings, sliding_window=window)).eval()
        prompts = [prompt.tokens for prompt in PROMPTS]
        outputs.append([next_token_logits(model, p, RoToR(order="given")) for p in prompts])
    for whole, windowed in zip(*outputs, strict=True):
        torch.testing.assert_close(windowed, whole, atol=1e-5, rtol=0)


def tokens(*documents: tuple[int, ...], scores: tuple[float, ...] | None = None) -> TokenizedPrompt:
    return TokenizedPrompt.assembled(
        prefix=(5, 6),
        documents=documents,
        suffix=(7, 8),
        document_ids=(None,) * len(documents),
        scores=scores,
    )


def nearest_first(method: RoToR, prompt: TokenizedPrompt) -> list[tuple[int, ...]]:
    order = method._arranged(prompt)
    return [prompt.documents_ids[index] for index in reversed(order)]


def test_the_global_orders() -> None:
    documents = ((30, 20), (10, 40, 40), (10, 40), (20, 99))
    prompt = tokens(*documents, scores=(0.5, 0.9, 0.5, 0.1))
    lexical = [(10, 40), (10, 40, 40), (20, 99), (30, 20)]
    assert nearest_first(RoToR(), prompt) == lexical
    # 40 occurs three times, 10 and 20 twice, 30 and 99 once.
    assert nearest_first(RoToR(order="frequency"), prompt) == [
        (10, 40),
        (10, 40, 40),
        (20, 99),
        (30, 20),
    ]
    assert nearest_first(RoToR(order="frequency"), tokens((1, 2), (3, 1), (3, 3))) == [
        (3, 3),
        (3, 1),
        (1, 2),
    ]
    by_score = [(10, 40, 40), (10, 40), (30, 20), (20, 99)]
    assert nearest_first(RoToR(order="score"), prompt) == by_score
    assert list(RoToR(order="given").arrange(prompt, None)) == [0, 1, 2, 3]  # type: ignore[arg-type]


@pytest.mark.parametrize("order", ["lexical", "frequency", "score"])
def test_orders_do_not_depend_on_the_prompt_even_where_everything_ties(order: str) -> None:
    documents = ((11, 12), (14, 13), (15, 16), (11, 17))
    seen = set()
    for permuted in permutations(documents):
        prompt = tokens(*permuted, scores=(0.5,) * 4)
        arranged = prompt.select(RoToR(order=order).arrange(prompt, None))  # type: ignore[arg-type]
        seen.add(arranged.input_ids)
    assert len(seen) == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_the_answer_does_not_depend_on_the_order_of_the_documents(
    family: str, family_model: FamilyModel
) -> None:
    model = RagMiddleModel(family_model(family), byte_level_bpe(), method=RoToR())
    prompt = tokens((20, 21, 22), (30, 31), (40, 41, 42, 43))
    expected, plain = model.logits(prompt), model.logits(prompt, method="none")
    for order in permutations(range(3)):
        assert torch.equal(model.logits(prompt.select(order)), expected)
    assert distance(expected, plain) > 0.01


def test_documents_without_scores_cannot_be_ordered_by_them(family_model: FamilyModel) -> None:
    model = RagMiddleModel(family_model("llama"), byte_level_bpe())
    with pytest.raises(PromptError, match="by score"):
        model.logits(tokens((20,), (30,)), method=RoToR(order="score"))
    nothing = model.logits(tokens(), method=RoToR(order="score"), on_missing_documents="ignore")
    assert torch.equal(nothing, model.logits(tokens()))


def test_routing_takes_each_token_from_the_surer_reading() -> None:
    sure, unsure = torch.tensor([0.9, 0.1]).log(), torch.tensor([0.3, 0.7]).log()
    both = torch.stack((torch.stack((sure, unsure)), torch.stack((unsure, sure))))
    assert torch.allclose(RoToR(routing=0.0).combine(both), torch.stack((sure, sure)))
    # The unmodified model's, at the first place, has to be surer by the margin.
    assert torch.allclose(RoToR(routing=0.3).combine(both), torch.stack((unsure, sure)))


def test_routing_reads_the_prompt_as_given_and_arranged(family_model: FamilyModel) -> None:
    model = RagMiddleModel(family_model("llama"), byte_level_bpe())
    prompt = tokens((40, 41, 42, 43), (20, 21, 22), (30, 31))
    plain, circled = (
        model.logits(prompt, method=method).log_softmax(-1) for method in ("none", RoToR())
    )
    always = model.logits(prompt, method=RoToR(routing=-1.0))
    never = model.logits(prompt, method=RoToR(routing=1.0))
    assert distance(always, plain) < 1e-4  # rows of a batch instead of a prompt alone
    assert distance(never, circled) < 1e-4
    assert distance(plain, circled) > 0.01
