"""The package is what Haystack expects of an integration."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_namespaces_are_shared() -> None:
    import haystack_integrations.components.generators as generators

    assert getattr(generators, "__file__", None) is None
    modules = {path.parent.name for path in ROOT.glob("haystack_integrations/**/__init__.py")}
    assert modules == {"rag_middle"}


def test_it_depends_on_haystack_and_rag_middle_only() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {requirement.split(">")[0] for requirement in project["dependencies"]}
    assert names == {"haystack-ai", "rag-middle"}
