"""What an operator decides when the server starts."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rag_middle.errors import MethodConfigError, UnsupportedGenerationError
from rag_middle.options import GenerationOptions
from rag_middle.small_model import NAME

if TYPE_CHECKING:
    from rag_middle.generation import MethodLike, RagMiddleModel
    from rag_middle.methods import Method

API_KEY_VARIABLE = "RAG_MIDDLE_API_KEY"
"""Environment variable with the key that clients have to send."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """What requests may ask for, and how much of it.

    Attributes:
        model_name: what clients call the model.
        methods: that requests may name; the first is the one of requests that name none.
        defaults: what holds where a request says nothing, and for what it cannot say
            (``on_overflow``, ``system``).
        api_key: that clients send as a bearer token; None: they need none.
        trust_markers: read document markers without a tag, in every message but the model's:
            only where all clients mark documents themselves and escape what others wrote.
        max_batch_size: prompts in one forward pass.
        max_waiting: answers that may wait for the model; more are refused with status 429.
        batch_wait: seconds that a free model waits for more requests, once there is one; for no
            more of them than were there at the same time since the last batch began.
        max_body_bytes: of a request.
        max_documents: of a prompt.

    Raises:
        MethodConfigError: there are no methods.
    """

    model_name: str
    methods: Mapping[str, Method]
    defaults: GenerationOptions = field(default_factory=GenerationOptions)
    api_key: str | None = field(default=None, repr=False)
    trust_markers: bool = False
    max_batch_size: int = 8
    max_waiting: int = 64
    batch_wait: float = 0.02
    max_body_bytes: int = 2 << 20
    max_documents: int = 200

    def __post_init__(self) -> None:
        if not self.methods:
            raise MethodConfigError("A server needs at least one method: 'none' is one.")

    @property
    def default_method(self) -> str:
        """The method of requests that name none."""
        return next(iter(self.methods))


def named_methods(
    model: RagMiddleModel, methods: Iterable[str] | Mapping[str, MethodLike]
) -> dict[str, Method]:
    """Methods by the names that requests use, each proven to take effect on the model.

    Args:
        model: that will run them.
        methods: by name, or as `public_names` takes them; the first is the default.

    Raises:
        RagMiddleError: as of `public_names` and of `RagMiddleModel.checked_method`.
    """
    named = methods if isinstance(methods, Mapping) else public_names(methods)
    return {name: model.checked_method(method) for name, method in named.items()}


def public_names(methods: Iterable[str]) -> dict[str, str]:
    """Methods, as `resolve_method` takes them or ``NAME=METHOD``, by the names that clients use.

    A profile is called after its file, without folders: clients need not know where files are.

    Raises:
        MethodConfigError: a name is taken twice.
    """
    by_name: dict[str, str] = {}
    for entry in methods:
        name = method = entry.strip()
        kind, _, path = method.partition(":")
        if named := re.fullmatch(r"([\w.-]+)=(.+)", method):
            name, method = named[1], named[2]
        elif kind.strip() == "profile":
            name = f"profile:{Path(path).stem}"
        if name in by_name:
            raise MethodConfigError(
                f"Two methods are called {name!r} here: name one of them, NAME=METHOD."
            )
        by_name[name] = method
    return by_name


def public_model_name(model: str | None) -> str:
    """A model's name for clients, who need not know where folders are; None: the default model."""
    if model is None:
        return NAME
    return os.path.basename(os.path.abspath(model)) if os.path.exists(model) else model


def api_key_of_environment() -> str | None:
    """The key, if there is one; raises `UnsupportedGenerationError` if no header can hold it."""
    key = os.environ.get(API_KEY_VARIABLE)
    if key is not None and not re.fullmatch("[!-~]+", key):
        raise UnsupportedGenerationError(
            f"{API_KEY_VARIABLE} has to be printable ASCII without spaces, or unset."
        )
    return key
