"""The manifest of a saved index, ``manifest.json``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rag_middle.errors import IndexFormatError
from rag_middle.files import open_regular, read_regular
from rag_middle.plain_data import parse_json
from rag_middle.retrieval.records import Skipped
from rag_middle.wording import Argument

__all__ = [
    "DATA_FILE",
    "FORMAT_VERSION",
    "MANIFEST",
    "Corpus",
    "Manifest",
    "is_index_folder",
    "read_manifest",
]

MANIFEST = "manifest.json"
FORMAT_VERSION = 1

DATA_FILE = re.compile(
    r"vectors-[0-9a-f]{16}\.faiss|chunks-[0-9a-f]{16}\.jsonl|"
    r"(vectors-new\.faiss|chunks-new\.jsonl|manifest\.json)\.part"
)
"""Names of what an index is kept in, beside its manifest."""
_FORMAT = "rag-middle-index"
_METRIC = "inner_product"
_BEGINNING = re.compile(rb'(\xef\xbb\xbf)?\s*\{\s*"format"\s*:\s*"%b"' % _FORMAT.encode())
_MAX_BYTES = 2**30  # it names every file that was skipped
_FILE_NAME = re.compile(r"(vectors-[0-9a-f]{16}\.faiss|chunks-[0-9a-f]{16}\.jsonl)")
_SHA256 = re.compile(r"[0-9a-f]{64}")
REBUILD = ("Build it anew with ", Argument("rebuild", True), ".")


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """What an index was built from.

    Attributes:
        content_hash: of the names and bytes of all files.
        settings: how they were split and loaded.
        skipped: what was left out.
        split_by_default: they were split as is the default for the embedder.
    """

    content_hash: str
    settings: Mapping[str, Any] = field(hash=False)
    skipped: tuple[Skipped, ...] = ()
    split_by_default: bool = False


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The contents of ``manifest.json``.

    Attributes:
        embedder: name of the embedder.
        dimension: length of its vectors.
        kind: ``auto``, ``flat`` or ``ivf``, as asked for.
        count: chunks, and vectors.
        vectors: name of the faiss file.
        vectors_sha256: its hash.
        chunks: name of the JSON lines file.
        chunks_sha256: its hash.
        corpus: what the index was built from; None where chunks were added one by one.
        fingerprint: of the embedder's files; None if the embedder has none.
    """

    embedder: str
    dimension: int
    kind: str
    count: int
    vectors: str
    vectors_sha256: str
    chunks: str
    chunks_sha256: str
    corpus: Corpus | None
    fingerprint: str | None = None  # indexes of earlier versions say none

    def to_json(self) -> str:
        """The file's text."""
        head = {"format": _FORMAT, "version": FORMAT_VERSION, "metric": _METRIC}
        return json.dumps({**head, **asdict(self)}, indent=2, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, content: bytes, where: Path) -> Manifest:
        """The manifest in a file's bytes.

        Raises:
            IndexFormatError: it is damaged, or of another format version.
        """
        try:
            fields = parse_json(content)
            if fields.pop("format") != _FORMAT:
                raise ValueError("it is of another format")
            version = fields.pop("version")
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise _damaged(where, error) from error
        if version != FORMAT_VERSION:
            raise IndexFormatError(
                f"The index {str(where.parent)!r} has format version {version!r}; this version of "
                f"rag-middle reads version {FORMAT_VERSION}. ",
                *REBUILD,
            )
        try:
            return _manifest(fields)
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise _damaged(where, error) from error


def read_manifest(folder: Path) -> bytes:
    """The bytes of the manifest in `folder`.

    Raises:
        OSError, ValueError: there is none that can be read.
    """
    return read_regular(folder / MANIFEST, _MAX_BYTES)


def is_index_folder(folder: Path, *, follow: bool = True) -> bool:
    """Whether `folder` holds a saved index, by how its manifest begins.

    Args:
        folder: where it may be.
        follow: count a manifest that is a link; False for folders that anybody fills.
    """
    try:
        with open_regular(folder / MANIFEST, follow=follow) as file:
            return _BEGINNING.match(file.read(200)) is not None
    except (OSError, ValueError):
        return False


def _manifest(fields: dict[str, Any]) -> Manifest:
    if fields.pop("metric") != _METRIC:
        raise ValueError(f"its metric is not {_METRIC}")
    corpus = fields.pop("corpus")
    if corpus is not None:
        skipped = tuple(Skipped(**entry) for entry in corpus.pop("skipped"))
        corpus = Corpus(skipped=skipped, **corpus)
        for entry in skipped:
            _require(str, source=entry.source, reason=entry.reason)
        _require(str, content_hash=corpus.content_hash)
        _require(dict, settings=corpus.settings)
        _require(bool, split_by_default=corpus.split_by_default)
    manifest = Manifest(corpus=corpus, **fields)
    for name in ("dimension", "count"):
        value = getattr(manifest, name)
        if type(value) is not int or value < (name == "dimension"):
            raise ValueError(f"{name} is {value!r}")
    for name, shape in (
        ("vectors", _FILE_NAME),  # a bare name: nothing outside the folder is opened
        ("chunks", _FILE_NAME),
        ("vectors_sha256", _SHA256),
        ("chunks_sha256", _SHA256),
        ("embedder", re.compile(r".+", re.DOTALL)),
        ("kind", re.compile(r"auto|flat|ivf")),
        ("fingerprint", re.compile(r".+", re.DOTALL)),
    ):
        value = getattr(manifest, name)
        if name == "fingerprint" and value is None:
            continue
        if not isinstance(value, str) or not shape.fullmatch(value):
            raise ValueError(f"{name} is {value!r}")
    return manifest


def _require(kind: type, **values: object) -> None:
    for name, value in values.items():
        if not isinstance(value, kind):
            raise ValueError(f"{name} is {value!r}")


def _damaged(where: Path, error: Exception) -> IndexFormatError:
    reason = f"{type(error).__name__}: {str(error).rstrip('.')}"
    return IndexFormatError(f"{str(where)!r} is damaged ({reason}). ", *REBUILD)
