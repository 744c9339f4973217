"""``rag-middle index``."""

from pathlib import Path

from rag_middle.retrieval import FaissIndex
from tests.cli.answering import NamedEmbedder
from tests.cli.conftest import Run


def test_documents_are_indexed_and_kept_up_to_date(run: Run, docs: Path, tmp_path: Path) -> None:
    out = tmp_path / "index"
    assert run("index", docs, "--out", out).out == (
        f"3 chunks of 3 files: 3 added, 0 kept, 0 removed\n{out}\n"
    )
    assert "nothing has changed" in run("index", docs, "--out", out).out
    (docs / "tours.txt").write_text("Tours lies on the Loire.")
    assert "4 chunks of 4 files: 1 added, 3 kept, 0 removed" in run("index", docs, "--out", out).out
    assert len(FaissIndex.load(out, NamedEmbedder())) == 4


def test_what_was_skipped_is_told(run: Run, docs: Path, tmp_path: Path) -> None:
    for number in range(12):
        (docs / f"{number:02d}.png").write_bytes(b"\x89PNG")
    shown = run("index", docs, "--out", tmp_path / "index")
    assert "skipped 00.png: '.png' is not read." in shown.err
    assert "2 more were skipped; --json lists them all." in shown.err
    described = run("index", docs, "--out", tmp_path / "index", "--json").json
    assert len(described["skipped"]) == 12
    assert (described["sources"], described["chunks"], described["changes"]) == (3, 3, None)
