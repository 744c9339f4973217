"""The plugin in vLLM: found by vLLM itself, and silent unless it is asked for something."""

from __future__ import annotations

from importlib.metadata import entry_points
from types import SimpleNamespace
from typing import Any
from unittest import TestCase

import pytest
import vllm
from torch import nn
from vllm.config.load import LoadConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.model_loader import BaseModelLoader

from rag_middle.errors import MethodConfigError, UnknownNameError
from rag_middle_vllm import plugin, register
from tests.reader import READER_LPES, reader_path

OPTION = {"method": "position_interpolation", "options": {"scale": 2}}


@pytest.fixture(autouse=True)
def _registered() -> None:
    register()


def engine_config(**options: Any) -> Any:
    return EngineArgs(model=str(reader_path()), max_model_len=64, **options).create_engine_config()


def configs(option: Any = None, *, draft: bool = False, additional: Any = None) -> dict[str, Any]:
    hf_config = SimpleNamespace() if option is None else SimpleNamespace(rag_middle=option)
    model_config = SimpleNamespace(
        hf_config=hf_config, runner_type="draft" if draft else "generate"
    )
    vllm_config = SimpleNamespace(additional_config=additional or {})
    return {"vllm_config": vllm_config, "model_config": model_config}


@pytest.fixture
def changed(monkeypatch: pytest.MonkeyPatch) -> list[nn.Module]:
    """The models that were changed."""
    models: list[nn.Module] = []
    monkeypatch.setattr(plugin, "_change", lambda model, *_: models.append(model))
    return models


class Loader(BaseModelLoader):
    """Registered after the plugin, with a `load_model` of its own."""

    def __init__(self) -> None:
        super().__init__(LoadConfig())

    def download_model(self, model_config: Any) -> None: ...
    def load_weights(self, model: nn.Module, model_config: Any) -> None: ...

    def load_model(self, vllm_config: Any, model_config: Any, prefix: str = "") -> nn.Module:
        return nn.Linear(1, 1)


class Outer(Loader):
    def load_model(self, vllm_config: Any, model_config: Any, prefix: str = "") -> nn.Module:
        return super().load_model(vllm_config, model_config, prefix).eval()


def test_vllm_finds_the_plugin() -> None:
    (entry,) = [e for e in entry_points(group="vllm.general_plugins") if e.name == "rag_middle"]
    assert entry.load() is register


def test_loaders_change_models_once(changed: list[nn.Module]) -> None:
    model = Outer().load_model(**configs(OPTION))
    assert changed == [model]
    assert Outer().load_model(**configs()) not in changed


def test_options_of_both_kinds_reach_the_loader(changed: list[nn.Module]) -> None:
    Loader().load_model(**configs(additional={"rag_middle": OPTION}))
    Loader().load_model(**configs(OPTION, additional={"rag_middle": OPTION}))
    assert len(changed) == 2
    other = {"rag_middle": {"method": "none"}}
    with pytest.raises(MethodConfigError, match="they differ"):
        Loader().load_model(**configs(OPTION, additional=other))


def test_an_unknown_method_stops_the_engine_before_weights_are_loaded() -> None:
    class Unreached(Loader):
        def load_model(self, vllm_config: Any, model_config: Any, prefix: str = "") -> nn.Module:
            raise AssertionError

    with pytest.raises(UnknownNameError, match="'lpess'"):
        Unreached().load_model(**configs({"method": "lpess"}))


def test_contents_and_not_names_enter_the_config_and_its_hash() -> None:
    option = {"rag_middle": {"method": READER_LPES}}
    plain, preset = (engine_config(hf_overrides=overrides) for overrides in ({}, option))
    inline = preset.model_config.hf_config.rag_middle
    assert inline["profile"]["options"]["factors"]
    changed = {**inline, "profile": {**inline["profile"], "options": {"factors": [1.0, 1, 1, 2]}}}
    other = engine_config(hf_overrides={"rag_middle": changed})
    additional = engine_config(additional_config=option)
    assert additional.additional_config["rag_middle"] == inline
    hashes = {config.compute_hash() for config in (plain, preset, other, additional)}
    assert len(hashes) == 4


@pytest.mark.parametrize("version", ["0.31.1", "0.9.2"])
def test_an_older_vllm_is_refused(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm, "__version__", version)
    with pytest.raises(plugin.UnsupportedVLLMError, match=f"needs vLLM 0.32.*{version}"):
        plugin.check_vllm()


def test_a_newer_vllm_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm, "__version__", "0.40.0")
    with TestCase().assertLogs(plugin._logger) as logs:
        plugin.check_vllm()
    assert "this is 0.40.0" in logs.output[0]


def test_a_vllm_whose_loaders_load_in_another_way_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(BaseModelLoader, "load_model")
    with pytest.raises(plugin.UnsupportedVLLMError, match="load_model"):
        plugin.hook_engine()


def test_a_vllm_without_what_receives_documents_serves_the_other_methods(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from vllm.renderers.online_renderer import OnlineRenderer
    from vllm.v1.engine.input_processor import InputProcessor

    monkeypatch.setattr(InputProcessor, "process_inputs", lambda self: None)
    monkeypatch.delattr(OnlineRenderer, "preprocess_chat")
    monkeypatch.delattr(EngineArgs.create_engine_config, "of_rag_middle")
    monkeypatch.delattr(BaseModelLoader.load_model, "of_rag_middle")
    monkeypatch.setattr(EngineArgs, "create_engine_config", EngineArgs.create_engine_config)
    register()
    with pytest.raises(plugin.UnsupportedVLLMError, match="preprocess_chat"):
        plugin._enable_documents(nn.Module(), {"rotor": {}}, None, None)
