"""The pages that are asked about, as files in the user's cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rag_middle.errors import OutputWriteError
from rag_middle.files import reason
from rag_middle.reader.corpus import QUESTIONS_FILE, CorpusQuestion, demo_corpus, write_corpus

__all__ = ["SavedCorpus", "saved_corpus"]


@dataclass(frozen=True, slots=True)
class SavedCorpus:
    """The demonstration's pages and questions.

    Attributes:
        pages: folder of Markdown files.
        questions: each answered by one page; its `source` is the file's name in `pages`.
        stated: kinds of facts that each page states, by its title.
    """

    pages: Path
    questions: tuple[CorpusQuestion, ...]
    stated: Mapping[str, frozenset[str]]


def saved_corpus(folder: str | Path | None = None) -> SavedCorpus:
    """Write the pages, unless they are there.

    Nothing is found half-written: the folder gets its name when it is complete.

    Args:
        folder: where; by default in the user's cache, under a digest of the content.

    Raises:
        OutputWriteError: the folder cannot be written.
    """
    entries, questions = demo_corpus()
    content = hashlib.sha256(repr([(e.title, e.body) for e in entries] + questions).encode())
    target = _default_folder(content.hexdigest()[:12]) if folder is None else Path(folder)
    if not (target / QUESTIONS_FILE).is_file():
        _write(target)
    stated = {e.title: frozenset(fact.attribute.key for fact in e.facts) for e in entries}
    return SavedCorpus(pages=target / "pages", questions=tuple(questions), stated=stated)


def _default_folder(digest: str) -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "rag-middle" / f"demo-corpus-{digest}"


def _write(target: Path) -> None:
    unfinished: str | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent)
        Path(unfinished).chmod(0o755)  # as any folder; a temporary one is private
        write_corpus(Path(unfinished))
        try:
            Path(unfinished).rename(target)
        except OSError:
            # Another process was quicker, or somebody's folder is in the way.
            if not (target / QUESTIONS_FILE).is_file():
                raise
    except (OSError, ValueError) as error:
        raise OutputWriteError(
            f"The demonstration's pages cannot be written to {str(target)!r} "
            f"({reason(error)}). Free space, correct the permissions, empty that folder, "
            "or set XDG_CACHE_HOME to a folder that can be written."
        ) from error
    finally:
        if unfinished is not None:
            shutil.rmtree(unfinished, ignore_errors=True)
