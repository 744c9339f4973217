"""The option ``rag_middle``: what it may say, and what becomes of it before the engine starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rag_middle.errors import FileFormatError, MethodConfigError, RagMiddleError, UnknownNameError
from rag_middle.methods import LPES, resolve_method
from rag_middle.profiles import ModelFacts, Profile, write_profile
from rag_middle_vllm.options import method_of, resolved


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    facts = ModelFacts(id="m", model_type="llama", layers=2, hidden_size=64)
    path = tmp_path / "lpes.json"
    trace = {"generations": [[1.0, 2.0]] * 100}
    content = Profile(method="lpes", options={"factors": [1.0, 1.5]}, model=facts, search=trace)
    write_profile(content, path)
    return path


def test_a_profile_is_read_once_and_its_content_travels(profile: Path) -> None:
    option = resolved({"profile": str(profile)})
    profile.unlink()
    option = json.loads(json.dumps(option))  # as between processes
    assert resolved(option) == option
    method = method_of(option)
    assert method == LPES(factors=(1.0, 1.5))
    assert method.provenance is not None
    assert method.provenance.source == f"profile:{profile}"
    assert method.provenance.profile.model.layers == 2
    assert not method.provenance.profile.search


@pytest.mark.parametrize(
    "name", ["positional_hidden_states:vicuna-7b-v1.5-16k", "profile:{profile}"]
)
def test_what_a_name_stands_for_travels_too(name: str, profile: Path) -> None:
    name = name.format(profile=profile)
    option = resolved({"method": name})
    assert option["source"] == name
    assert method_of(option) == resolve_method(name)


@pytest.mark.parametrize(
    ("option", "error", "message"),
    [
        ({}, MethodConfigError, "should be as"),
        ({"profile": "missing.json"}, FileFormatError, "cannot be read"),
        ({"method": "lpess"}, UnknownNameError, "lpes"),
        ({"method": "ms_poe+siw"}, MethodConfigError, "given one method"),
    ],
)
def test_anything_else_is_refused(option: Any, error: type[RagMiddleError], message: str) -> None:
    with pytest.raises(error, match=message):
        resolved(option)


@pytest.mark.parametrize("option", [{"profile": "lpes.json"}, {"method": "profile:lpes.json"}])
def test_workers_read_no_files(option: dict[str, str]) -> None:
    """A model's own config.json may hold the option, and shall not name files of the machine."""
    with pytest.raises(MethodConfigError, match="workers read no files"):
        method_of(option)
