"""The bundled reader: a small language model that answers from documents, and the world it reads.

The reader is trained from scratch by ``training/train_reader.py`` on generated documents about
invented people, towns, companies and things. It finds the document a question asks about and copies
the answer from it; it knows nothing else. ``rag_middle/reader/model/README.md`` is its card.
"""

from __future__ import annotations

from pathlib import Path

from rag_middle.errors import ModelNotFoundError

__all__ = ["reader_path"]


def reader_path() -> Path:
    """Folder of the bundled reader, for ``RagMiddleModel.from_pretrained``.

    Raises:
        ModelNotFoundError: this installation was built without the weights.
    """
    folder = Path(__file__).parent / "model"
    if not (folder / "model.safetensors").is_file():
        raise ModelNotFoundError(
            f"The bundled reader is not in this installation ({folder}). Install the released "
            "package, train it with `python -m training.train_reader`, or name a model with "
            "--model."
        )
    return folder
