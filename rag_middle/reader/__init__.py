"""The bundled reader: a small language model that answers from documents, and the world it reads.

The reader is trained from scratch by ``training/train_reader.py`` on generated documents about
invented people, towns, companies and things. It finds the document a question asks about and copies
the answer from it; it knows nothing else. ``rag_middle/reader/model/README.md`` is its card.
"""

from __future__ import annotations

from pathlib import Path

from rag_middle.errors import ModelNotFoundError

__all__ = ["READER_ID", "READER_NAME", "TRAINED_DOCUMENTS", "is_reader", "reader_path"]

READER_NAME = "the bundled reader"
"""What it is called where a path would say nothing."""

READER_ID = "rag-middle-reader"
"""What `rag-middle serve` calls it unless it is told otherwise."""

TRAINED_DOCUMENTS = 12
"""Most documents of a prompt that it was trained on."""


def reader_path() -> Path:
    """Folder of the bundled reader, for ``RagMiddleModel.from_pretrained``.

    Raises:
        ModelNotFoundError: this installation was built without the weights.
    """
    folder = _folder()
    if not (folder / "model.safetensors").is_file():
        raise ModelNotFoundError(
            f"The bundled reader is not in this installation ({folder}). Install the released "
            "package, train it with `python -m training.train_reader`, or name a model with "
            "--model."
        )
    return folder


def is_reader(name: str | Path) -> bool:
    """Whether a model's name, or its folder, is that of the bundled reader."""
    return Path(name).absolute() == _folder().absolute()


def _folder() -> Path:
    return Path(__file__).parent / "model"
