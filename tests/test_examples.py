"""The examples run, without a network, and show what they say they show."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_quickstart_shows_that_document_order_matters_to_the_model_and_not_to_pine(
    capsys: pytest.CaptureFixture[str],
) -> None:
    runpy.run_path(str(EXAMPLES / "quickstart.py"), run_name="__main__")
    _, _, shown = capsys.readouterr().out.partition("\nnone:")
    unmodified, _, pine = shown.partition("\npine:")
    assert "different" in unmodified
    assert "the same" in pine
