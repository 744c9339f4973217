"""PINE and RoToR: documents in any order, also where they tie, and what their options do."""

import random
from copy import deepcopy
from itertools import permutations
from typing import Any

import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM

from rag_middle import ContextPrompt, MethodConfigError
from rag_middle.errors import PromptError
from rag_middle.generation import RagMiddleModel
from rag_middle.generation.forward import next_token_logits
from rag_middle.layout import PromptLayout
from rag_middle.methods import PINE, RoToR
from rag_middle.methods.rotor.kernels.circle import circle_distances
from rag_middle.tokens import TokenizedPrompt
from tests.conftest import FamilyModel
from tests.contract.cases import VOCABULARY, Prompt
from tests.contract.running import distance
from tests.tiny_models import speaking
from tests.tokenizers import byte_level_bpe

pytestmark = pytest.mark.thorough

DOCUMENTS = 20


BEGINNING = (41, 17, 23, 11, 52, 38, 29, 14)  # of all documents


FAMILIES = ("llama", "qwen3", "gemma2", "gpt_oss", "smollm3", "cohere")


def _alike() -> TokenizedPrompt:
    """Twenty documents that differ in the order of their last tokens only."""
    draw, tails = random.Random(0), dict[tuple[int, ...], None]()
    while len(tails) < DOCUMENTS:
        tails[tuple(draw.sample((5, 9, 12, 30, 33), 5))] = None
    return TokenizedPrompt.assembled(
        prefix=(6, 7, 8),
        documents=[BEGINNING + tail for tail in tails],
        suffix=(18, 19, 20, 21),
        document_ids=[str(index) for index in range(DOCUMENTS)],
    )


PROMPT = _alike()


SHUFFLED = [
    PROMPT.select(random.Random(seed).sample(range(DOCUMENTS), DOCUMENTS)) for seed in range(4)
]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.one_in(3)
def test_the_order_of_alike_documents_changes_nothing(
    family: str, family_model: FamilyModel
) -> None:
    model = RagMiddleModel(family_model(family), byte_level_bpe(), method="pine")
    expected = model.logits(PROMPT)
    answer = model.generate(PROMPT, max_new_tokens=4)
    for shuffled in SHUFFLED:
        # Bit by bit: the model reads the very same tokens.
        assert torch.equal(model.logits(shuffled), expected)
        assert model.generate(shuffled, max_new_tokens=4).token_ids == answer.token_ids
    assert distance(expected, model.logits(PROMPT, method="none")) > 0.01


def test_in_half_precision_too(family_model: FamilyModel) -> None:
    half: Any = deepcopy(family_model("llama"))
    half.to(torch.bfloat16)
    model = RagMiddleModel(half, byte_level_bpe(), method="pine")
    expected = model.logits(PROMPT)
    for shuffled in SHUFFLED:
        assert torch.equal(model.logits(shuffled), expected)


def test_only_with_re_assignment_the_order_of_the_prompt_means_nothing() -> None:
    tokenizer = byte_level_bpe(bos=True)
    reader = speaking("pine ablations", tokenizer)
    prompts = [ContextPrompt("", order, "?") for order in (["ab", "cd", "ef"], ["ef", "ab", "cd"])]
    moved = {}
    for ablation in ("reversed", "no_reassignment"):
        options = {"method": "pine", "method_options": {"ablation": ablation}}
        first, second = (reader.logits(prompt, **options) for prompt in prompts)
        moved[ablation] = float((first - second).abs().max())
    assert moved["reversed"] == 0
    assert moved["no_reassignment"] > 1e-4
    with pytest.raises(MethodConfigError, match="one of reversed, no_reassignment, got 'none'"):
        PINE(ablation="none")  # type: ignore[arg-type]


#: The second is padded on the left; the third has neither prefix nor suffix worth the name.
PROMPTS = (
    Prompt.random(PromptLayout(15, ((2, 5), (5, 9), (9, 11))), seed=31),
    Prompt.random(PromptLayout(9, ((1, 3), (3, 3), (3, 7))), seed=32),
    Prompt.random(PromptLayout(10, ((0, 4), (4, 9))), seed=33),
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
