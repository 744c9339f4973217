"""``rag-middle serve``: an OpenAI-compatible server."""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rag_middle.cli import console
from rag_middle.cli import options as opt
from rag_middle.cli.models import Loading, load
from rag_middle.errors import ConfigError, MethodConfigError, MissingExtraError
from rag_middle.markers import marker_key
from rag_middle.options import GenerationOptions
from rag_middle.serving.settings import API_KEY_VARIABLE, ServerSettings
from rag_middle.small_model import NAME

if TYPE_CHECKING:
    from fastapi import FastAPI

_server_flag = partial(typer.Option, rich_help_panel="Server")
_limit = partial(typer.Option, rich_help_panel="Limits")


def _limits(
    *,
    max_batch_size: int = _limit(8, min=1, help="Prompts in one forward pass."),
    max_waiting: int = _limit(64, min=1, help="Answers that may wait; beyond: status 429."),
    batch_wait: float = _limit(0.02, min=0, max=10, help="Seconds to wait for more requests."),
    max_body_bytes: int = _limit(2 << 20, min=1024, help="Of a request."),
    max_documents: int = _limit(200, min=0, help="Of a prompt."),
) -> None:
    """Limits of `ServerSettings`."""


_Defaults = Annotated[
    dict[str, Any],
    opt.generation_options(*("template", "on_missing_documents", "num_beams", "seed", "stop")),
]


@opt.command
def serve(
    *,
    model: opt.Model = None,
    method: opt.MethodName = "none",
    method_option: opt.MethodOptions = None,
    allow_method: list[str] | None = opt.method_flag(
        None, metavar="METHOD", help="Another that requests may name, or NAME=METHOD."
    ),
    options: _Defaults,
    loading: Loading,
    host: str = _server_flag("127.0.0.1", help="Address to listen on."),
    port: int = _server_flag(8000, min=0, max=65535, help="0: a free one."),
    served_model_name: str | None = _server_flag(
        None, help="What clients call it. Default: its name or folder."
    ),
    trust_markers: bool = _server_flag(
        False,
        "--trust-markers",
        help="Read markers without a tag: only if all clients escape what others wrote.",
    ),
    allow_origin: list[str] | None = _server_flag(
        None, help="Origin of web pages whose scripts may ask (CORS); repeatable, * for all."
    ),
    ignore_unknown_fields: bool = _server_flag(
        False, "--ignore-unknown-fields", help="Ignore unknown fields of requests."
    ),
    limits: Annotated[dict[str, Any], opt.group(_limits)],
    shutdown_timeout: int = _limit(
        30, min=0, help="Seconds for running requests after SIGTERM or Ctrl-C."
    ),
) -> None:
    """Answer over HTTP, as OpenAI's API does, under a method.

    Clients send the key that is in RAG_MIDDLE_API_KEY, where that is set. Text that they marked
    with the library counts as documents where RAG_MIDDLE_MARKER_KEY is the same as theirs.
    """
    for module in ("fastapi", "uvicorn"):
        if find_spec(module) is None:
            raise MissingExtraError("serve", package=module, extra="serve")
    # What can be refused is refused before a model is loaded for nothing.
    names = public_names([method, *(allow_method or ())])
    default, *others = names
    methods = {default: opt.chosen_method(names[default], method_option)}
    methods |= {name: opt.chosen_method(names[name]) for name in others}
    defaults = GenerationOptions(**options)
    marker_key()
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        raise ConfigError(
            f"Cannot listen on {host}:{port} ({error.strerror or error}). Choose another --port, "
            "0 for any that is free, or another --host."
        ) from None
    import uvicorn

    from rag_middle.generation.identity import display_name
    from rag_middle.serving import create_app, named_methods

    def prepare() -> FastAPI:
        loaded = load(model, loading, method=methods[default])
        if model is None:
            console.tell_of_default()
        settings = ServerSettings(
            model_name=served_model_name or display_name(model or NAME),
            methods=named_methods(loaded, methods),
            defaults=defaults,
            api_key=os.environ.get(API_KEY_VARIABLE) or None,
            trust_markers=trust_markers,
            allowed_origins=tuple(allow_origin or ()),
            ignore_unknown_fields=ignore_unknown_fields,
            **limits,
        )
        named = ", ".join(settings.methods)
        console.tell("Serving", f"{settings.model_name}; methods, default first: {named}.", "green")
        if settings.api_key is None and host not in ("localhost", "127.0.0.1", "::1"):
            console.warn("everybody who reaches this address can use it: set RAG_MIDDLE_API_KEY.")
        return create_app(loaded, settings)

    # Not in the main thread, which then only serves sockets: PyTorch keeps OpenMP workers for every
    # thread that ran it, and with more of them than cores small models answer at half their speed.
    with ThreadPoolExecutor(1) as pool:
        app = pool.submit(copy_context().run, prepare).result()
    # Uvicorn raises the signal again at its end, so that it would end the process.
    signal.signal(signal.SIGTERM, lambda *_: None)
    uvicorn.run(
        app,
        host=host,
        port=port,
        http="h11",  # the only one with a limit for the head of a request
        h11_max_incomplete_event_size=2**16,
        limit_concurrency=256,
        timeout_graceful_shutdown=shutdown_timeout,
        server_header=False,
        # A client would write its own address into the log, in any characters.
        proxy_headers=False,
    )


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
