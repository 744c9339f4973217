"""What transformers raises about a model's files, and code that a config names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from safetensors import SafetensorError

from rag_middle.errors import FileFormatError, RagMiddleError

_KERNEL_FIELDS = (
    *("attn_implementation", "_attn_implementation"),
    "_attn_implementation_internal",
)


@contextmanager
def format_errors(source: str, file: str) -> Iterator[None]:
    """Say of what transformers raises which file it came from, as `FileFormatError`.

    Left as they are: this package's errors, files that are not there (OSError), damaged weights,
    packages that are not installed, and memory that does not suffice.
    """
    try:
        yield
    except (RagMiddleError, OSError, ImportError, SafetensorError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        said = " ".join(str(error).split())[:300].rstrip(". ")
        reason = f"{type(error).__name__}: {said}."
        raise bad_model_file(source, file, reason) from error


def bad_model_file(source: str, file: str, reason: str) -> FileFormatError:
    """The error about a file of a model's folder."""
    return FileFormatError(
        f"Cannot load {source!r}: {file} is damaged or does not fit its model: {reason} Fetch the "
        "file again, or correct it."
    )


def check_kernels(source: str, stated: Mapping[str, Any], attn_implementation: str | None) -> None:
    """Refuse a config that names code of the hub to be fetched and run.

    Args:
        source: for messages.
        stated: the content of a config.json.
        attn_implementation: a kernel on the hub that the caller asked for by name.

    Raises:
        FileFormatError: it does, and the caller did not ask for it.
    """
    for name, value in stated.items():
        if isinstance(value, dict):  # the config of a part
            check_kernels(source, value, attn_implementation)
        if name not in _KERNEL_FIELDS:
            continue
        for kernel in value.values() if isinstance(value, dict) else [value]:
            if "/" in str(kernel) and kernel != attn_implementation:
                reason = (
                    f"{name} names {kernel!r}, code that would be fetched from the hub and "
                    "run. Take it out, or ask for it yourself with attn_implementation."
                )
                raise bad_model_file(source, "config.json", reason)
