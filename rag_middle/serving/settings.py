"""What an operator decides when the server starts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rag_middle.options import GenerationOptions

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
        allowed_origins: of web pages whose scripts may ask (CORS); ``"*"``: all.
        ignore_unknown_fields: leave out what this server does not know, and say so in the answer,
            instead of refusing the request.
        trust_markers: read document markers without a tag, in every message but the model's:
            only where all clients mark documents themselves and escape what others wrote.
        max_batch_size: prompts in one forward pass.
        max_waiting: answers that may wait for the model; more are refused with status 429.
        batch_wait: seconds that a free model waits for more requests, once there is one; for no
            more of them than were there at the same time since the last batch began.
        max_body_bytes: of a request.
        max_documents: of a prompt.
    """

    model_name: str
    methods: Mapping[str, Method]
    defaults: GenerationOptions = field(default_factory=GenerationOptions)
    api_key: str | None = field(default=None, repr=False)
    allowed_origins: tuple[str, ...] = ()
    ignore_unknown_fields: bool = False
    trust_markers: bool = False
    max_batch_size: int = 8
    max_waiting: int = 64
    batch_wait: float = 0.02
    max_body_bytes: int = 2 << 20
    max_documents: int = 200

    @property
    def default_method(self) -> str:
        """The method of requests that name none."""
        return next(iter(self.methods))


def named_methods(
    model: RagMiddleModel, methods: Iterable[str] | Mapping[str, MethodLike]
) -> dict[str, Method]:
    """Methods by the names that requests use, each proven to take effect on the model.

    `methods` are by name, or called by their own; the first is the default. Errors are those of
    `RagMiddleModel.checked_method`.
    """
    named = methods if isinstance(methods, Mapping) else {name: name for name in methods}
    return {name: model.checked_method(method) for name, method in named.items()}
