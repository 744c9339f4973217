"""A small model that answers right, and the invented documents that it reads.

A LLaMA of 1.2 million parameters, trained on generated documents of one sentence. It finds the
document that a question names and copies the value from it, in milliseconds; it knows nothing else.
Tests that need right answers, or the same ones everywhere, ask it.
"""

from pathlib import Path

__all__ = ["READER_LPES", "READER_PROFILE", "reader_path"]

READER_PROFILE = Path(__file__).parent / "lpes.json"
"""Of LPES, fitted to this model by `rag-middle calibrate`."""

READER_LPES = f"profile:{READER_PROFILE}"


def reader_path() -> Path:
    """Its folder, for ``RagMiddleModel.from_pretrained``."""
    return Path(__file__).parent / "model"
