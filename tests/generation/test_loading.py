"""Models from disk, and what is said where there are none."""

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast, modeling_utils

from rag_middle import ContextPrompt
from rag_middle.errors import FileFormatError, ModelNotFoundError, UnsupportedGenerationError
from rag_middle.generation import BackendFallbackWarning, RagMiddleModel, loading
from tests.tiny_models import saved


@pytest.fixture(scope="module")
def folder(
    llama: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    return saved(RagMiddleModel(llama, tokenizer), tmp_path_factory.mktemp("model"))


def test_a_saved_model_writes_the_same_text(
    folder: Path, model: RagMiddleModel, prompt: ContextPrompt
) -> None:
    loaded = RagMiddleModel.from_pretrained(folder, method="pine")
    expected = model.generate(prompt, method="pine", max_new_tokens=8)
    assert loaded.generate(prompt, max_new_tokens=8).token_ids == expected.token_ids
    assert loaded.method.name == "pine"
    assert loaded.context_window == 512
    assert not loaded.model.training
    assert loaded.device.type == ("cuda" if torch.cuda.is_available() else "cpu")


def test_dtype_backend_and_tokenizer_are_chosen(
    folder: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    loaded = RagMiddleModel.from_pretrained(
        str(folder),
        dtype="bfloat16",
        attn_implementation="eager",
        tokenizer=tokenizer,
        device="cpu",
        method="lpes",
        method_options={"factors": 1.2},
    )
    assert loaded.model.dtype == torch.bfloat16
    assert loaded.model.config._attn_implementation == "eager"
    assert loaded.tokenizer is tokenizer
    assert loaded.generate("Why?", max_new_tokens=2).applied


def test_flash_attention_of_a_config_falls_back_too_and_nothing_is_fetched_for_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if torch.cuda.is_available():
        pytest.skip("flash attention may be installed")

    def fetch(*_: object, **__: object) -> None:
        pytest.fail("a kernel would be fetched from the hub and run")

    monkeypatch.setattr(modeling_utils, "is_kernels_available", lambda: True)
    monkeypatch.setattr(modeling_utils, "lazy_import_flash_attention", fetch)
    stating = shutil.copytree(folder, tmp_path / "model")
    path = stating / "config.json"
    flash = {"attn_implementation": "flash_attention_2"}
    path.write_text(json.dumps({**json.loads(path.read_text()), **flash}))
    for options in ({}, {"attn_implementation": "flash_attention_2"}):
        with pytest.warns(BackendFallbackWarning, match="using sdpa") as caught:
            loaded = RagMiddleModel.from_pretrained(stating, device="cpu", **options)  # type: ignore[arg-type]
        assert caught[0].filename == __file__
        assert loaded.model.config._attn_implementation == "sdpa"
    with warnings.catch_warnings():
        warnings.simplefilter("error", BackendFallbackWarning)
        chosen = RagMiddleModel.from_pretrained(stating, device="cpu", attn_implementation="eager")
    assert chosen.model.config._attn_implementation == "eager"


@pytest.mark.parametrize("name", ["no-such-model-anywhere", "nobody/no-such-model"])
def test_a_model_that_is_nowhere_is_named_with_next_steps(name: str) -> None:
    with pytest.raises(ModelNotFoundError, match="HF_HUB_OFFLINE") as raised:
        RagMiddleModel.from_pretrained(name)
    assert name in str(raised.value)
    assert "hf download" in str(raised.value)


@pytest.mark.parametrize("subfolder", ["", "inner"])
def test_a_model_in_a_cache_of_its_own(subfolder: str, folder: Path, tmp_path: Path) -> None:
    repository = tmp_path / "models--nobody--cached"
    commit = "c" * 40
    shutil.copytree(folder, repository / "snapshots" / commit / subfolder)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    options = {"cache_dir": str(tmp_path), "subfolder": subfolder}
    loaded = RagMiddleModel.from_pretrained(
        "nobody/cached", model_options=options, tokenizer_options=options
    )
    here = RagMiddleModel.from_pretrained(folder)
    ours, expected = (model.generate("Why?", max_new_tokens=2) for model in (loaded, here))
    assert ours.token_ids == expected.token_ids


@pytest.mark.parametrize(
    "weights", [b"version https://git-lfs.github.com/spec/v1\n", b"\x08\0\0\0\0\0\0\0{"]
)
def test_weights_that_were_not_fetched_whole(weights: bytes, folder: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(folder, damaged)
    (damaged / "model.safetensors").write_bytes(weights)
    told = r"a file of its weights is damaged.*interrupted download or a Git LFS pointer"
    with pytest.raises(FileFormatError, match=told):
        RagMiddleModel.from_pretrained(damaged)


def test_directories_that_lack_something(
    tmp_path: Path, folder: Path, llama: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ModelNotFoundError, match="holds nothing"):
        RagMiddleModel.from_pretrained(empty)
    with pytest.raises(ModelNotFoundError, match="the model of"):
        RagMiddleModel.from_pretrained(empty, tokenizer=tokenizer)
    no_weights = tmp_path / "config"
    llama.config.save_pretrained(no_weights)
    with pytest.raises(ModelNotFoundError, match=r"config.json.*the tokenizer|the tokenizer of"):
        RagMiddleModel.from_pretrained(no_weights)
    with pytest.raises(ModelNotFoundError, match="weights of the model"):
        RagMiddleModel.from_pretrained(no_weights, tokenizer=folder)


@pytest.mark.parametrize(
    ("chosen", "device", "device_map"), [("4bit", None, None), ("8bit", "cpu", {"": "cpu"})]
)
def test_bits_become_a_configuration_of_transformers(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    llama: PreTrainedModel,
    chosen: str,
    device: str | None,
    device_map: dict[str, str] | None,
) -> None:
    asked: dict[str, Any] = {}

    def load(source: str, **arguments: Any) -> tuple[PreTrainedModel, dict[str, Any]]:
        asked.update(arguments)
        return llama, {"missing_keys": ()}

    monkeypatch.setattr(loading, "find_spec", lambda package: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(loading.AutoModelForCausalLM, "from_pretrained", load)
    RagMiddleModel.from_pretrained(folder, quantization_config=chosen, device=device)
    config = asked["quantization_config"]
    assert (config.load_in_4bit, config.load_in_8bit) == (chosen == "4bit", chosen == "8bit")
    assert asked.get("device_map") == device_map


def _adapter(path: Path, base: Any) -> Path:
    path.mkdir()
    stated = {"peft_type": "LORA", "base_model_name_or_path": base}
    (path / "adapter_config.json").write_text(json.dumps(stated), encoding="utf-8")
    return path


def test_the_base_of_an_adapter_is_checked_as_any_model(folder: Path, tmp_path: Path) -> None:
    base = shutil.copytree(folder, tmp_path / "base")
    config = json.loads((base / "config.json").read_text(encoding="utf-8"))
    config["_attn_implementation"] = "some/kernel"
    (base / "config.json").write_text(json.dumps(config), encoding="utf-8")
    adapter = _adapter(tmp_path / "adapter", str(base))
    with pytest.raises(FileFormatError, match="code that would be fetched"):
        RagMiddleModel.from_pretrained(adapter, tokenizer=str(folder))


def test_the_base_of_an_adapter_is_not_fetched(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(*args: Any, **options: Any) -> None:
        pytest.fail("the hub was asked")

    monkeypatch.setattr(loading.HfApi, "model_info", ask)
    adapter = _adapter(tmp_path / "adapter", "some/base")
    with pytest.raises(ModelNotFoundError, match="hf download some/base"):
        RagMiddleModel.from_pretrained(adapter, tokenizer=str(folder))


def test_an_option_that_no_model_takes_is_named(folder: Path) -> None:
    with pytest.raises(UnsupportedGenerationError, match="no option 'temprature'"):
        RagMiddleModel.from_pretrained(folder, model_options={"temprature": 1})
