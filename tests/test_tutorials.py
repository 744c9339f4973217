"""The notebooks run from start to end, and their saved outputs are those of the default model."""

import re
from pathlib import Path

import nbformat
import pytest

from docs.notebooks import TUTORIALS, executed
from rag_middle.errors import ModelNotFoundError
from rag_middle.small_model import default_model


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
