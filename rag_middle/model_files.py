"""What transformers raises about a model's files, and the attention that a config names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from safetensors import SafetensorError

from rag_middle.errors import FileFormatError, RagMiddleError, UnsupportedGenerationError
from rag_middle.options import LOADING, unknown_option

_BACKEND_FIELDS = (
    "attn_implementation",
    "_attn_implementation",
    "_attn_implementation_internal",
)


@contextmanager
def format_errors(source: str, file: str) -> Iterator[None]:
    """Say of what transformers raises which file it came from, as `FileFormatError`.

    Left as they are: this package's errors, files that are not there (OSError), and memory that
    does not suffice. `UnsupportedGenerationError`: a package is not installed, an option is
    unknown, or code that comes with the model was not asked for.
    """
    try:
        yield
    except (RagMiddleError, OSError, torch.OutOfMemoryError):
        raise
    except SafetensorError as error:
        reason = f"{error}. An interrupted download or a Git LFS pointer leaves such files."
        raise bad_model_file(source, "a file of its weights", reason) from error
    except Exception as error:
        if isinstance(error, ImportError) or "trust_remote_code" in str(error):
            raise UnsupportedGenerationError(f"Cannot load {source!r}: {error}") from error
        unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        if unknown and isinstance(error, TypeError):
            raise unknown_option(unknown[1], LOADING) from error
        said = " ".join(str(error).split())[:300].rstrip(". ")
        raise bad_model_file(source, file, f"{type(error).__name__}: {said}.") from error


def bad_model_file(source: str, file: str, reason: str) -> FileFormatError:
    """The error about a file of a model's folder."""
    return FileFormatError(
        f"Cannot load {source!r}: {file} is damaged or does not fit its model: {reason} Fetch the "
        "file again, or correct it."
    )


def named_backends(config: Mapping[str, Any]) -> list[str]:
    """Implementations of attention that the content of a config.json names, its parts' included."""
    names: list[str] = []
    for field, value in config.items():
        if field in _BACKEND_FIELDS and value:
            names += value.values() if isinstance(value, dict) else [value]
        elif isinstance(value, dict):  # the config of a part
            names += named_backends(value)
    return [str(name) for name in names]
