"""The documentation is true: links, versions, its example method, the outputs of notebooks."""

import re
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import nbformat
import pytest
import torch

from docs.notebooks import TUTORIALS, executed
from rag_middle import __version__
from rag_middle.attention import applied
from rag_middle.errors import ModelNotFoundError
from rag_middle.layout import PromptLayout
from rag_middle.small_model import default_model
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


def test_the_oldest_versions_are_those_of_the_ranges() -> None:
    projects = (ROOT / "pyproject.toml", *ROOT.glob("integrations/*/pyproject.toml"))
    described = "".join(path.read_text(encoding="utf-8") for path in projects)
    pins = dict(
        re.findall(r"(?m)^([\w-]+)==([\d.]+)$", (ROOT / "constraints-oldest.txt").read_text())
    )
    del pins["huggingface-hub"]  # the newest that this transformers takes
    for name, oldest in pins.items():
        least = {
            f"{bound}.0.0"[: len(oldest)] for bound in re.findall(rf'"{name}>=([\d.]+)', described)
        }
        assert oldest in least, name  # an extra may need a newer one


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_made_up_method_of_the_guide_works(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    guide = (ROOT / "docs" / "adding_a_method.md").read_text(encoding="utf-8")
    [source] = re.findall(r"```python\n(\"\"\".*?)```", guide, flags=re.DOTALL)
    made_up = ModuleType("quiet_documents")
    monkeypatch.setitem(sys.modules, made_up.__name__, made_up)  # dataclasses look it up
    exec(source, made_up.__dict__)

    model = FAMILIES["llama"].build().to(dtype)
    ids = torch.arange(1, 31)[None]
    prompt = laid_out(PromptLayout(length=30, documents=((5, 10), (10, 20))))
    prompt = replace(prompt, scores=(0.2, 0.7))

    def logits(factor: float) -> torch.Tensor:
        with applied(model, made_up.QuietDocuments(factor=factor), [prompt]):
            return model(ids).logits

    plain = model(ids).logits
    assert torch.equal(logits(1.0), plain)
    changed = (logits(0.5) - plain).abs().amax((0, 2)) > 1e-3
    assert changed.any()
    assert not changed[:5].any()  # before the document


# -- notebooks -------------------------------------------------------------------------------------


def printed(notebook: nbformat.NotebookNode) -> list[str]:
    """What cells wrote, in order; a chart counts as the word."""
    return [
        output.get("text", "chart") for cell in notebook.cells for output in cell.get("outputs", [])
    ]


@pytest.mark.slow
@pytest.mark.timeout(900)  # kernels of their own import everything again, on busy machines
@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_saved_outputs_are_those_of_a_run(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        default_model()
    except ModelNotFoundError as error:
        pytest.skip(str(error))
    monkeypatch.delenv("RAG_MIDDLE_MODEL", raising=False)
    saved = nbformat.read(path, as_version=4)
    assert printed(saved) == printed(executed(path)), "Run `make tutorials`, read them, commit."


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_notebooks_are_executed_and_hold_nothing_of_a_machine(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    notebook = nbformat.reads(text, as_version=4)
    nbformat.validate(notebook)
    assert printed(notebook)
    assert not re.search(r"(?<![\w.:/])/(home|root|work|tmp|Users)/|[A-Z]:\\\\", text)
