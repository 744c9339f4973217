"""The package is what LlamaIndex expects of an integration."""

from __future__ import annotations

from importlib.metadata import distribution, requires
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_namespace_is_shared() -> None:
    import llama_index
    import llama_index.core
    import llama_index.llms

    for namespace in (llama_index, llama_index.llms):
        assert getattr(namespace, "__file__", None) is None
    assert not list(ROOT.glob("llama_index/__init__.py"))
    assert not list(ROOT.glob("llama_index/llms/__init__.py"))


def test_it_depends_on_llama_index_core_and_rag_middle_only() -> None:
    assert distribution("llama-index-llms-rag-middle").metadata["Name"]
    names = {r.split(">")[0].split("<")[0].strip() for r in requires("llama-index-llms-rag-middle")}
    assert names == {"llama-index-core", "rag-middle"}
