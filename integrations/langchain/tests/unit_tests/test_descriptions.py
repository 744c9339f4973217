"""`dumpd` and `load`: names and options, without weights and secrets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from langchain_core._api import LangChainBetaWarning
from langchain_core.load import dumpd, dumps, load
from langchain_core.prompts import ChatPromptTemplate, HumanMessagePromptTemplate, PromptTemplate
from langchain_core.runnables import RunnableBinding, RunnableSequence

from langchain_rag_middle import ChatRagMiddle, DocumentPrompt, RagMiddleLLM
from rag_middle.methods import SIW, MsPoE, resolve_method

CLASSES = [ChatRagMiddle, RagMiddleLLM]

pytestmark = pytest.mark.filterwarnings(
    f"ignore::{LangChainBetaWarning.__module__}.{LangChainBetaWarning.__name__}"
)


def loaded(description: Any, allowed: Any = (*CLASSES, DocumentPrompt), **options: Any) -> Any:
    namespaces = ["langchain_rag_middle"]
    text = json.loads(json.dumps(description))  # as a file keeps it
    return load(text, allowed_objects=allowed, valid_namespaces=namespaces, **options)


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"method": "ms_poe", "method_options": {"max_ratio": 2.0}},
        {"method": MsPoE(max_ratio=2.0)},
        {"method": SIW(dense_areas={0: (True,) * 4, 1: (False,) * 4})},
        {"method": ["long_context_reorder", "siw"]},
        {"temperature": 0.5, "seed": 3, "n": 2, "stop": ["x"], "eos_token_id": [3]},
        {"document_prompt": DocumentPrompt(template="{title}: {page_content}")},
        {"dtype": torch.float32, "device": torch.device("cpu"), "context_window": 500},
    ],
    ids=str,
)
def test_a_model_survives_its_description(
    kind: Any, settings: dict[str, Any], tiny_folder: Path
) -> None:
    model = kind(model=tiny_folder, max_tokens=3, **settings)
    again = loaded(dumpd(model))
    assert type(again) is kind
    assert again._method == model._method
    assert dumpd(again) == dumpd(model)
    assert (again.max_tokens, again.n) == (3, model.n)
    assert again.document_prompt == model.document_prompt
    if "dtype" not in settings:
        assert again._identifying_params == model._identifying_params


def test_weights_are_loaded_by_name(tiny_folder: Path) -> None:
    model = ChatRagMiddle(model=tiny_folder, method="pine", max_tokens=3)
    description = dumps(model)
    assert len(description) < 3000
    answer = model.invoke("Why?", documents=["a", "b"])
    again = loaded(json.loads(description))
    assert again.invoke("Why?", documents=["a", "b"]).content == answer.content
    assert again.rag_middle_model.model is model.rag_middle_model.model


def test_chains_and_bindings_with_a_model_are_loaded(tiny_folder: Path) -> None:
    model = ChatRagMiddle(model=tiny_folder, max_tokens=3)
    chain = ChatPromptTemplate.from_template("{question}") | model.bind(max_tokens=2)
    of_core = [ChatPromptTemplate, HumanMessagePromptTemplate, PromptTemplate]
    of_core += [RunnableBinding, RunnableSequence]
    again = loaded(dumpd(chain), [*CLASSES, *of_core])
    assert again.invoke({"question": "Why?"}).content == chain.invoke({"question": "Why?"}).content


@pytest.mark.parametrize("kind", CLASSES)
def test_tokens_of_the_hub_are_named_and_not_told(
    kind: Any, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = {"token": "hf_SECRET"}
    model = kind(model=tiny_folder, token="hf_SECRET")
    description = dumpd(model)
    assert "hf_SECRET" not in str(description)
    assert description["kwargs"]["token"]["id"] == ["HF_TOKEN"]
    assert loaded(description).token is None
    monkeypatch.setenv("HF_TOKEN", "hf_OTHER")
    again = loaded(description, secrets_from_env=True)
    assert again.token.get_secret_value() == "hf_OTHER"
    hidden = kind(model=tiny_folder, model_options=secret, tokenizer_options=secret)
    assert "SECRET" not in dumps(hidden)


@pytest.mark.parametrize("kind", CLASSES)
def test_what_no_name_loads_again_is_described_in_words(
    kind: Any, tiny: Any, tiny_folder: Path
) -> None:
    parts = resolve_method([MsPoE(max_ratio=2.0), "long_context_reorder"])
    for model in (
        kind(model=tiny),
        kind(model=tiny_folder, tokenizer=tiny.tokenizer),
        kind(model=tiny_folder, method=parts),
    ):
        description = dumpd(model)
        assert description["type"] == "not_implemented"
        with pytest.raises(NotImplementedError):
            loaded(description)
