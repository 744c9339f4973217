"""Weights that are asked for by name are loaded once, for as long as the documentation says."""

import gc
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import pytest

from rag_middle.generation import RagMiddleModel, release_models, shared_model, sharing
from tests.reader import reader_path

pytestmark = pytest.mark.thorough


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    loaded: list[dict[str, Any]] = []
    load = RagMiddleModel.from_pretrained.__func__  # type: ignore[attr-defined]

    def counted(cls: Any, **given: Any) -> Any:
        loaded.append(given)
        return load(cls, **given)

    monkeypatch.setattr(RagMiddleModel, "from_pretrained", classmethod(counted))
    # Models that other tests of this process still use have no part in these.
    monkeypatch.setattr(sharing, "_networks", WeakValueDictionary())
    monkeypatch.setattr(sharing, "_latest", [])
    yield loaded
    release_models()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(reader_path(), tmp_path / "model"))


def test_temporary_models_load_once(folder: Path, loads: list[Any]) -> None:
    for method in ("none", "pine", "ms_poe"):
        model = shared_model(folder, method=method, model_options={"token": None})
        assert model.method.name == method
        del model
        gc.collect()
    assert len(loads) == 1
    release_models()
    assert not [*sharing._networks]
    shared_model(folder)
    assert len(loads) == 2


def test_used_weights_stay_beside_others(folder: Path, tmp_path: Path, loads: list[Any]) -> None:
    other = shutil.copytree(folder, tmp_path / "other")
    model = shared_model(folder)
    shared_model(other)
    release_models()
    assert shared_model(folder).model is model.model
    assert len(loads) == 2
    shared_model(other)
    assert len(loads) == 3


def test_other_options_and_changed_files_are_other_weights(folder: Path, loads: list[Any]) -> None:
    first = shared_model(folder)
    assert shared_model(folder, attn_implementation="eager").model is not first.model
    os.utime(folder / "config.json", ns=(1, 2**62))
    assert shared_model(folder).model is not first.model
    # Not the same tokenizer, though it reads alike.
    assert shared_model(folder, tokenizer=first.tokenizer).model is not first.model
    assert len(loads) == 4


def test_threads_that_ask_at_once_load_once(folder: Path, loads: list[Any]) -> None:
    barrier, models = threading.Barrier(4), []

    def ask() -> None:
        barrier.wait()
        models.append(shared_model(folder))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loads) == 1
    assert len({id(model.model) for model in models}) == 1


def test_relative_names_are_folders_of_the_working_directory(
    folder: Path, tmp_path: Path, loads: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(folder, tmp_path / "elsewhere" / "model")  # files of the same sizes and times
    models = []
    for place in (tmp_path, tmp_path / "elsewhere"):
        monkeypatch.chdir(place)
        models.append(shared_model("model", tokenizer="model"))
    assert models[0].model is not models[1].model
    assert shared_model(place / "model", tokenizer=place / "model").model is models[1].model
    assert len(loads) == 2
