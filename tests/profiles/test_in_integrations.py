"""Profiles in the integrations."""

from pathlib import Path

import pytest
from llama_index.llms.rag_middle import RagMiddleLLM as LlamaIndexLLM

from langchain_rag_middle import RagMiddleLLM
from rag_middle.documents import mark
from rag_middle.generation import ProfileWarning, RagMiddleModel, model_facts
from rag_middle.methods import LPES, MeasuredOrder, method_name, resolve_method
from rag_middle.profiles import PROFILE_FILE, Profile, write_profile
from tests.tiny_models import speaking
from tests.tokenizers import byte_level_bpe


@pytest.fixture
def model() -> RagMiddleModel:
    return speaking("integrations", byte_level_bpe(bos=True))


@pytest.fixture
def folder(model: RagMiddleModel, tmp_path: Path) -> str:
    """What `rag-middle diagnose` writes: the best-ranked document is read best at the end."""
    facts = model_facts(model.model, model.tokenizer)
    order = Profile(
        method="measured_order",
        options={"accuracy": [0.1, 0.2, 0.9]},
        model=facts,
        data={"documents": 3},
    )
    write_profile(order, tmp_path / PROFILE_FILE)
    return f"profile:{tmp_path}"


TEXTS = ("Lyon lies on the Rhone.", "Paris lies on the Seine.", "Bonn lies on the Rhine.")
RANKED = f"{''.join(map(mark, TEXTS))} Which river?"
MEASURED = f"{''.join(map(mark, reversed(TEXTS)))} Which river?"


def test_langchain_and_llama_index_put_documents_in_the_measured_order(
    model: RagMiddleModel, folder: str
) -> None:
    expected = model.generate(MEASURED, max_new_tokens=8).text
    assert RagMiddleLLM(model=model, method=folder, max_tokens=8).invoke(RANKED) == expected
    llm = LlamaIndexLLM(
        model=model.model, tokenizer=model.tokenizer, method=folder, max_new_tokens=8
    )
    assert llm.complete(RANKED).text == expected


def test_another_number_of_documents_is_named(model: RagMiddleModel, folder: str) -> None:
    with pytest.warns(ProfileWarning, match="measured with 3 documents, and this prompt has 5"):
        model.generate(
            f"{''.join(map(mark, (*TEXTS, 'x', 'y')))} ?", method=folder, max_new_tokens=1
        )


def test_an_order_goes_with_another_model_which_is_named(folder: str) -> None:
    tokenizer = byte_level_bpe(bos=True)
    other = speaking("other", tokenizer, num_hidden_layers=2)
    with pytest.warns(ProfileWarning, match=r"was made for .*decoder layers 3, here 2"):
        ordered = other.generate(RANKED, method=folder, max_new_tokens=8)
    assert ordered.text == other.generate(MEASURED, max_new_tokens=8).text


def test_an_order_and_a_method_of_one_profile(model: RagMiddleModel, tmp_path: Path) -> None:
    parts = {"measured_order": {"accuracy": [0.1, 0.2, 0.9]}, "lpes": {"factors": [1.2, 1.5, 1.1]}}
    facts = model_facts(model.model, model.tokenizer)
    write_profile(
        Profile(method="measured_order+lpes", options=parts, model=facts), tmp_path / PROFILE_FILE
    )
    method = resolve_method(f"profile:{tmp_path}")
    assert method_name(method) == f"profile:{tmp_path}"
    both = [MeasuredOrder(accuracy=(0.1, 0.2, 0.9)), LPES(factors=(1.2, 1.5, 1.1))]
    assert method == resolve_method(both)
