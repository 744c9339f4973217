"""The documentation is true: its links lead somewhere and its example method works."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from rag_middle.attention import applied
from rag_middle.layout import PromptLayout
from tests.families import FAMILIES
from tests.prompts import laid_out

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


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
