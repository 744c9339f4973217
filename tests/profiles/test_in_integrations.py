"""Profiles in the integrations, where those are installed."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import LlamaConfig

from rag_middle.documents import mark
from rag_middle.generation import RagMiddleModel, model_facts
from rag_middle.profiles import Profile, write_profile
from tests.tiny_models import build, tiny
from tests.tokenizers import byte_level_bpe

PROMPT = f"{mark('Lyon lies on a river.')} Which river?"


@pytest.fixture
def model() -> RagMiddleModel:
    tokenizer = byte_level_bpe(bos=True)
    llama = build("integrations", tiny(LlamaConfig, vocab_size=len(tokenizer)), "sdpa")
    return RagMiddleModel(llama, tokenizer)


@pytest.fixture
def profile(model: RagMiddleModel, tmp_path: Path) -> str:
    path = tmp_path / "lpes.json"
    facts = model_facts(model.model, model.tokenizer)
    write_profile(Profile(method="lpes", options={"factors": [1.2, 1.5, 1.1]}, model=facts), path)
    return f"profile:{path}"


def test_langchain(model: RagMiddleModel, profile: str) -> None:
    langchain = pytest.importorskip("langchain_rag_middle")
    llm = langchain.RagMiddleLLM(model=model, method=profile, max_tokens=4)
    answer = llm.invoke(PROMPT)
    assert (
        answer
        == model.generate(
            PROMPT,
            method=profile,
            max_new_tokens=4,
        ).text
    )


def test_llama_index(model: RagMiddleModel, profile: str) -> None:
    llama_index = pytest.importorskip("llama_index.llms.rag_middle")
    llm = llama_index.RagMiddleLLM(
        model=model.model, tokenizer=model.tokenizer, method=profile, max_new_tokens=4
    )
    assert llm._model.method.provenance is not None
    answer = llm.complete(PROMPT)
    assert (
        answer.text
        == model.generate(
            PROMPT,
            method=profile,
            max_new_tokens=4,
        ).text
    )


def test_what_integrations_tell_names_the_profile(model: RagMiddleModel, profile: str) -> None:
    langchain = pytest.importorskip("langchain_rag_middle")
    chain = langchain.RagMiddleLLM(model=model, method=profile, max_tokens=2)
    [[answered]] = chain.generate([PROMPT]).generations
    assert answered.generation_info["rag_middle"]["method"] == profile
    llama_index = pytest.importorskip("llama_index.llms.rag_middle")
    llm = llama_index.RagMiddleLLM(
        model=model.model, tokenizer=model.tokenizer, method=profile, max_new_tokens=2
    )
    assert llm.to_payload()["method"] == profile
    answer = llm.complete(PROMPT)
    assert answer.raw["rag_middle"]["method"] == profile
