"""The public names exist, are typed, and cost nothing until used."""

from __future__ import annotations

import ast
import pickle
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module, resources
from pathlib import Path
from typing import Any

import pytest

import rag_middle
from rag_middle import errors, integration

ROOT = Path(__file__).parent.parent
PUBLIC_PACKAGES = ("generation", "integration", "methods", "retrieval")


@pytest.mark.parametrize("name", rag_middle.__all__)
def test_every_public_name_can_be_imported(name: str) -> None:
    assert getattr(rag_middle, name).__name__ == name


def test_every_error_is_public() -> None:
    assert set(errors.__all__) <= set(rag_middle.__all__)


def test_importing_the_package_loads_no_heavy_library() -> None:
    script = "import rag_middle, sys; print(*sorted(sys.modules))"
    finished = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    loaded = set(finished.stdout.split())
    assert "rag_middle" in loaded
    assert not loaded & {"torch", "transformers", "tokenizers", "numpy", "typer", "rich"}


def test_unknown_names_are_refused_and_known_ones_listed() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Pine'"):
        rag_middle.Pine  # noqa: B018 - the access is what is tested
    assert set(rag_middle.__all__) <= set(dir(rag_middle))


def test_type_information_is_shipped() -> None:
    assert resources.files("rag_middle").joinpath("py.typed").is_file()


def names_taken(framework: str) -> Iterator[tuple[str, str]]:
    """Module and name of each import from this package in an integration."""
    for file in (ROOT / "integrations" / framework).rglob("*.py"):
        if not {"build", "tests"} & {*file.parts}:
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                module = getattr(node, "module", None) or ""
                if isinstance(node, ast.ImportFrom) and module.split(".")[0] == "rag_middle":
                    yield from ((module, alias.name) for alias in node.names)


def test_integrations_use_public_packages_and_their_facade() -> None:
    """But for vLLM's, which computes attention itself, with this package's operators."""
    public = ("rag_middle", *(f"rag_middle.{name}" for name in PUBLIC_PACKAGES))
    taken = {
        pair for name in ("haystack", "langchain", "llama_index") for pair in names_taken(name)
    }
    assert {(module, name) for module, name in taken if module not in public} == set()
    assert len(integration.__all__) <= 25
    assert [name for name in integration.__all__ if not hasattr(integration, name)] == []


def test_what_the_plugin_for_vllm_takes_is_there() -> None:
    """Its own tests need vLLM, which is not installed here."""
    taken = [*names_taken("vllm")]
    assert [pair for pair in taken if not hasattr(import_module(pair[0]), pair[1])] == []


# -- errors ----------------------------------------------------------------------------------------


ARGUMENTS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "MarkerError": (("Stray marker",), {"position": 3, "excerpt": "x"}),
    "ContextOverflowError": (
        (),
        {"prompt_tokens": 90, "max_new_tokens": 20, "context_window": 100, "example": 2},
    ),
    "UnsupportedArchitectureError": (("gpt2",), {"reason": "No.", "alternative": "Other."}),
    "MissingExtraError": (("A chart",), {"package": "matplotlib", "extra": "eval"}),
}


@pytest.mark.parametrize("name", errors.__all__)
def test_an_error_survives_the_way_between_processes(name: str) -> None:
    arguments, named = ARGUMENTS.get(name, (("What was wrong.",), {}))
    error = getattr(errors, name)(*arguments, **named)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error) != ""
    assert vars(again) == vars(error)
