"""What a model's folder says, checked before anything is built from it.

A damaged number would otherwise fail deep in transformers, or have terabytes allocated first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_MAPPING,
    AutoModel,
    AutoModelForCausalLM,
    PretrainedConfig,
)

from rag_middle.errors import ModelFormatError, RagMiddleError
from rag_middle.plain_data import is_whole

#: More than any model has; below, a model without numbers is built in seconds.
MOST_LAYERS = 1000
MOST_OF_A_SIZE = 2**26
_MOST_NUMBERS = 10**13
#: By the names that most families use, or translate into their own.
_REQUIRED_SIZES = ("num_hidden_layers", "hidden_size", "vocab_size")
_OTHER_SIZES = ("num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size")
#: Numbers of a model per byte of its weights: 8 where one takes a bit, and as many again for
#: tensors that are shared or made anew.
_NUMBERS_PER_BYTE = 16
_BUFFERS = 10**8  # tables that no file holds
#: Out of these transformers makes lists, modules and tables while it reads a config or builds a
#: model. By what names of fields hold, as families have names of their own.
_MOST_STATED = (
    (re.compile(r"layers?$|(^|_)(depth|blocks)$"), MOST_LAYERS),
    (re.compile(r"experts|expert_num$"), 2**15),
    (re.compile(r"position|(^|_)ctx$|context_length$|seq(uence)?_len"), MOST_OF_A_SIZE),
    (re.compile(r"^(num_labels|id2label|attention_types)$"), 10**5),
)
_KERNEL_FIELDS = (
    *("attn_implementation", "_attn_implementation"),
    "_attn_implementation_internal",
)


@contextmanager
def format_errors(source: str, file: str) -> Iterator[None]:
    """Say of what transformers raises which file it came from, as `ModelFormatError`.

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
        raise ModelFormatError(source, file=file, reason=reason) from error


def check_kernels(source: str, stated: Mapping[str, Any], attn_implementation: str | None) -> None:
    """Refuse a config that names code of the hub to be fetched and run.

    Args:
        source: for messages.
        stated: the content of a config.json.
        attn_implementation: a kernel on the hub that the caller asked for by name.

    Raises:
        ModelFormatError: it does, and the caller did not ask for it.
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
                raise ModelFormatError(source, file="config.json", field=name, reason=reason)


def check_stated_sizes(source: str, stated: Mapping[str, Any]) -> None:
    """Refuse numbers that would fill the memory while transformers reads a config.

    Args:
        source: for messages.
        stated: the content of a config.json.

    Raises:
        ModelFormatError: with the field.
    """
    for name, value in stated.items():
        if isinstance(value, dict):  # the config of a part
            check_stated_sizes(source, value)
        size = _stated_size(name, value)
        most = next((most for names, most in _MOST_STATED if names.search(name)), None)
        if size is not None and most is not None and size > most:
            reason = f"{name} must be at most {most}, got {size!r}."
            raise ModelFormatError(source, file="config.json", field=name, reason=reason)


def _stated_size(name: str, value: Any) -> int | None:
    """How large a value is, or what transformers makes of it; `None` where it does not grow."""
    if is_whole(value):
        return value
    if name == "id2label" and isinstance(value, dict | list):
        return len(value)
    if name == "attention_types" and isinstance(value, list):  # GPT-Neo: [[kinds, how often], ...]
        return sum(
            len(entry[0]) * entry[1]
            for entry in value
            if isinstance(entry, list)
            and len(entry) == 2
            and isinstance(entry[0], list | str)
            and is_whole(entry[1], 0)
        )
    return None


def check_config(source: str, config: PretrainedConfig, *, is_embedder: bool = False) -> int | None:
    """Refuse sizes that no model has, and return how many numbers the model would have.

    Args:
        source: for messages.
        config: of a model. One with code of its own, or of another kind, is not built, and `None`
            returned.
        is_embedder: the kind is a model without a head; else a causal language model.

    Raises:
        ModelFormatError: with the field where one is to blame.
    """
    text: Any = config.get_text_config(decoder=True)
    for name in (*_REQUIRED_SIZES, *_OTHER_SIZES):
        value = getattr(text, name, None)
        if value is None and (name in _OTHER_SIZES or not hasattr(text, name)):
            continue
        if isinstance(value, list | tuple):  # some have a size for each layer
            continue
        most = MOST_LAYERS if name == "num_hidden_layers" else MOST_OF_A_SIZE
        if not is_whole(value, 1) or value > most:
            reason = f"{name} must be a whole number from 1 to {most}, got {value!r}."
            own_name = (getattr(text, "attribute_map", None) or {}).get(name, name)
            raise ModelFormatError(source, file="config.json", field=own_name, reason=reason)
    known = MODEL_MAPPING if is_embedder else MODEL_FOR_CAUSAL_LM_MAPPING
    if type(text) not in known or config.is_encoder_decoder:
        return None
    kind: Any = AutoModel if is_embedder else AutoModelForCausalLM
    with format_errors(source, "config.json"), torch.device("meta"):
        model = kind.from_config(text)
        numbers: int = sum(tensor.numel() for tensor in (*model.parameters(), *model.buffers()))
    if numbers > _MOST_NUMBERS:
        reason = f"it describes a model of {numbers:.1e} numbers."
        raise ModelFormatError(source, file="config.json", reason=reason)
    return numbers


def check_weights(source: str, numbers: int) -> None:
    """Refuse a config whose model is much larger than the weights beside it.

    Raises:
        ModelFormatError: it is.
    """
    files = [*Path(source).glob("*.safetensors"), *Path(source).glob("*.bin")]
    size = sum(path.stat().st_size for path in files)
    if size and numbers > _NUMBERS_PER_BYTE * size + _BUFFERS:
        reason = (
            f"it describes a model of {numbers:.1e} numbers, and the weights are {size:.1e} bytes."
        )
        raise ModelFormatError(source, file="config.json", reason=reason)
