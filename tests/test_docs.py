"""The documentation is true: its links lead somewhere and its example method works."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from rag_middle import __version__
from rag_middle.attention import AttentionPlan, ModelTraits, Planner, applied
from rag_middle.layout import PromptLayout
from rag_middle.tokens import TokenizedPrompt
from tests.families import FAMILIES
from tests.prompts import laid_out

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "*/*/README.md", "benchmarks/results/*.md")
    for path in ROOT.glob(pattern)
    if not path.is_relative_to(ROOT / "build")
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_pages_and_headings_that_exist(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in link:
            continue
        target, _, heading = link.partition("#")
        path = page.parent / target if target else page
        if not path.exists() or (heading and heading not in _headings(path)):
            broken.append(link)
    assert not broken


def _headings(page: Path) -> set[str]:
    """Anchors of a page's headings."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_all_distributions_have_one_version() -> None:
    stated = {
        name: re.search(r"(?m)^version[:=\s]+\"?([\w.]+)", (ROOT / name).read_text())
        for name in (
            "CITATION.cff",
            "integrations/haystack/pyproject.toml",
            "integrations/langchain/pyproject.toml",
            "integrations/llama_index/pyproject.toml",
            "integrations/vllm/pyproject.toml",
        )
    }
    assert {name: match and match[1] for name, match in stated.items()} == dict.fromkeys(
        stated, __version__
    )


@pytest.mark.parametrize("folder", sorted(ROOT.glob("integrations/*/")), ids=lambda path: path.name)
def test_every_integration_can_be_published(folder: Path) -> None:
    described = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    project = described["project"]
    assert project["authors"]
    assert project["urls"]
    included = described["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert "CHANGELOG.md" in {name.strip("/") for name in included}
    changes = (folder / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"`{project['name']}`" in changes
    assert "## [Unreleased]" in changes or f"## [{project['version']}]" in changes


def test_the_oldest_versions_are_those_of_the_ranges() -> None:
    described = "".join(
        (folder / "pyproject.toml").read_text(encoding="utf-8")
        for folder in (ROOT, *ROOT.glob("integrations/*/"))
    )
    pins = dict(
        re.findall(r"(?m)^([\w-]+)==([\d.]+)$", (ROOT / "constraints-oldest.txt").read_text())
    )
    del pins["huggingface-hub"]  # the newest that this transformers takes
    for name, oldest in pins.items():
        least = {
            f"{bound}.0.0"[: len(oldest)] for bound in re.findall(rf'"{name}>=([\d.]+)', described)
        }
        assert oldest in least, name  # an extra may need a newer one


def test_the_made_up_method_of_the_guide_works(monkeypatch: pytest.MonkeyPatch) -> None:
    guide = (ROOT / "docs" / "adding_a_method.md").read_text(encoding="utf-8")
    [source] = re.findall(r"```python\n(\"\"\".*?)```", guide, flags=re.DOTALL)
    made_up = ModuleType("quiet_start")
    monkeypatch.setitem(sys.modules, made_up.__name__, made_up)  # dataclasses look it up
    exec(source, made_up.__dict__)

    model = FAMILIES["llama"].build()
    ids = torch.arange(1, 31)[None]
    prompt = laid_out(PromptLayout(length=30, documents=((5, 10), (10, 20))))

    def logits(factor: float) -> torch.Tensor:
        with applied(model, made_up.QuietStart(factor=factor), [prompt]):
            return model(ids).logits

    plain = model(ids).logits
    torch.testing.assert_close(logits(1.0), plain, atol=1e-5, rtol=0)  # float32 sums
    assert (logits(0.5) - plain).abs().max() > 1e-3


def test_the_change_of_the_guide_works_in_half_precision() -> None:
    guide = (ROOT / "docs" / "adding_a_method.md").read_text(encoding="utf-8")
    [source] = re.findall(r"```python\n(from dataclasses.*?)```", guide, flags=re.DOTALL)
    names: dict[str, Any] = {"__name__": "louder_values"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "louder_values", ModuleType("louder_values"))
        exec(source, names)

    class Louder(Planner):
        def __init__(self, factor: float) -> None:
            self.factor = factor

        def plan(self, prompts: tuple[TokenizedPrompt, ...], traits: ModelTraits) -> AttentionPlan:
            return AttentionPlan.uniform(traits.layers, names["LouderValues"](factor=self.factor))

    model = FAMILIES["llama"].build().to(torch.bfloat16)
    ids = torch.arange(1, 31)[None]
    prompt = laid_out(PromptLayout(length=30, documents=((5, 10), (10, 20))))
    plain = model(ids).logits
    with applied(model, Louder(1.0), [prompt]):
        assert torch.equal(model(ids).logits, plain)
    with applied(model, Louder(2.0), [prompt]):
        assert not torch.equal(model(ids).logits, plain)
