"""The server as an application of Ray Serve; needs the extra ``ray``.

::

    serve run rag_middle.serving.ray:app model=Qwen/Qwen2.5-1.5B-Instruct methods=pine replicas=2

Two deployments. ``model`` has the replicas: each runs `create_app` on a model of its own, and its
queue puts requests into batches. (``serve.batch`` would be a second queue in front of that one, and
knows neither which requests may share a batch, nor clients that leave, nor answers that end before
others of their batch.) ``front`` takes the requests, without a model, and sends those of a replica
that died to another one.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from importlib import import_module
from typing import Any, Literal

from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.types import Message

from rag_middle.errors import MissingExtraError, UnsupportedGenerationError
from rag_middle.markers import MARKER_KEY_VARIABLE
from rag_middle.options import GenerationKwargs, checked_options
from rag_middle.plain_data import parse_json
from rag_middle.serving.errors import HANDLERS, ApiError, dumped
from rag_middle.serving.gate import Gate, replayed, route_path
from rag_middle.serving.settings import (
    API_KEY_VARIABLE,
    ServerSettings,
    api_key_of_environment,
    named_methods,
    public_model_name,
    public_names,
)

_log = logging.getLogger(__name__)

_SECRETS = (API_KEY_VARIABLE, MARKER_KEY_VARIABLE)
_SCOPE = ("type", "http_version", "method", "scheme", "path", "raw_path", "query_string", "headers")
_RETRY_SECONDS = 5
_HEALTH_SECONDS = 2  # so long is a dead replica not replaced; Ray Serve's default is 10
_FRONT_REQUESTS = 1000  # open at a time: they cost a task each, while `max_waiting` bounds the rest


class Arguments(BaseModel):
    """What `app` takes.

    Texts that begin with ``[`` or ``{`` are read as JSON, since the command line has only texts.

    Attributes:
        model: directory or hub name; every node has to reach it.
        methods: that requests may name, the first one the default; a list, or separated by commas.
        method_options: of the first one.
        loading: keyword arguments of `RagMiddleModel.from_pretrained`: ``{"dtype": "bfloat16"}``.
        options: of answers where requests say nothing, as of `ServerSettings.defaults`.
        served_model_name: what clients call the model; by default its name, or that of its folder.
        trust_markers: as of `ServerSettings`, like the next ones. There ``max_waiting`` is about a
            replica; as many requests wait in front of them, too.
        replicas: how many there are; ``"auto"``, or `autoscaling`, lets Ray Serve decide.
        autoscaling: Ray Serve's ``autoscaling_config``. ``target_ongoing_requests`` is
            ``max_batch_size`` where it is missing.
        num_gpus: of a replica; a fraction where replicas share a GPU, whose memory they have to
            share by themselves. 0: it sees none.
        num_cpus: of a replica, and its number of threads.
    """

    model_config = ConfigDict(extra="forbid")

    model: str
    methods: list[str] = Field(["none"], min_length=1)
    method_options: dict[str, Any] = {}
    loading: dict[str, Any] = {}
    options: dict[str, Any] = {}
    served_model_name: str | None = None
    trust_markers: bool = False
    max_batch_size: int = Field(8, ge=1)
    max_waiting: int = Field(64, ge=1)
    batch_wait: float = Field(0.02, ge=0, le=10)
    max_body_bytes: int = Field(8 << 20, ge=1024)
    max_documents: int = Field(200, ge=0)
    client_timeout: float = Field(60.0, ge=0.1)
    replicas: int | Literal["auto"] = 1
    autoscaling: dict[str, Any] | None = None
    num_gpus: float = Field(0.0, ge=0)
    num_cpus: float = Field(1.0, ge=0)

    @field_validator("*", mode="before")
    @classmethod
    def _read(cls, value: Any) -> Any:
        return parse_json(value) if isinstance(value, str) and value[:1] in ("[", "{") else value

    @field_validator("methods", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return value.split(",") if isinstance(value, str) else value

    @property
    def scaling(self) -> dict[str, Any]:
        """Options of the deployment with the replicas."""
        if self.autoscaling is None and self.replicas != "auto":
            return {"num_replicas": self.replicas}
        target = {"target_ongoing_requests": self.max_batch_size}
        return {"num_replicas": "auto", "autoscaling_config": target | (self.autoscaling or {})}


def app(args: dict[str, Any]) -> Any:
    """An application for ``serve run``, ``serve build`` and ``serve.run``.

    Where the environment has ``RAG_MIDDLE_API_KEY`` or ``RAG_MIDDLE_MARKER_KEY``, that of the nodes
    has to have them too: they are not among what Ray keeps of an application.

    Args:
        args: fields of `Arguments`.

    Returns:
        A ``ray.serve.Application``.

    Raises:
        MissingExtraError: Ray Serve is not installed.
        UnsupportedGenerationError: an argument is none, or has a wrong value.
        MethodConfigError: as of `public_names`.
    """
    try:
        serve: Any = import_module("ray.serve")  # not installed everywhere
    except ImportError as error:
        raise MissingExtraError("rag_middle.serving.ray", package="ray", extra="ray") from error
    try:
        arguments = Arguments.model_validate(args)
    except ValidationError as error:
        problem = error.errors()[0]
        name = ".".join(map(str, problem["loc"]))
        raise UnsupportedGenerationError(
            f"{name}: {problem['msg']}. Arguments: {', '.join(Arguments.model_fields)}."
        ) from error
    public_names(arguments.methods)
    checked_options(arguments.options, allowed=GenerationKwargs)
    api_key_of_environment()
    secrets = [name for name in _SECRETS if name in os.environ]
    model = serve.deployment(
        Replica,
        name="model",
        # One batch in the model, and one that is ready for it: what waits longer waits in front
        # of all replicas, for the first one that is free.
        max_ongoing_requests=2 * arguments.max_batch_size,
        max_queued_requests=arguments.max_waiting,
        health_check_period_s=_HEALTH_SECONDS,
        ray_actor_options={"num_cpus": arguments.num_cpus, "num_gpus": arguments.num_gpus},
        **arguments.scaling,
    ).bind(arguments, secrets)

    def build() -> Starlette:
        context = serve.get_replica_context()
        return _front(serve.get_deployment_handle("model", context.app_name), arguments, secrets)

    front = serve.deployment(
        serve.ingress(build)(),
        name="front",
        max_ongoing_requests=_FRONT_REQUESTS,
        ray_actor_options={"num_cpus": 0},
    )
    return front.bind(model)


def _application(arguments: Arguments) -> FastAPI:
    from rag_middle.generation import RagMiddleModel
    from rag_middle.serving.app import create_app

    names = public_names(arguments.methods)
    default = next(iter(names))
    model = RagMiddleModel.from_pretrained(
        arguments.model,
        method=names[default],
        method_options=arguments.method_options or None,
        **arguments.loading,
    )
    settings = ServerSettings(
        model_name=arguments.served_model_name or public_model_name(arguments.model),
        methods=named_methods(model, {**names, default: model.method}),
        defaults=checked_options(arguments.options, allowed=GenerationKwargs),
        trust_markers=arguments.trust_markers,
        max_batch_size=arguments.max_batch_size,
        max_waiting=arguments.max_waiting,
        batch_wait=arguments.batch_wait,
        max_body_bytes=arguments.max_body_bytes,
        max_documents=arguments.max_documents,
        client_timeout=arguments.client_timeout,
    )
    return create_app(model, settings)


class Replica:
    """The application of `create_app`, called with requests that were read already.

    Args:
        arguments: model and limits.
        secrets: environment variables that have to be here.

    Raises:
        UnsupportedGenerationError: one of them is not.
        RagMiddleError: the model cannot be loaded, or cannot take a method.
    """

    def __init__(self, arguments: Arguments, secrets: list[str]) -> None:
        _check_environment(secrets)
        # Not above: `front` needs no PyTorch, which takes seconds and some hundred MB.
        from rag_middle.serving.batching import run_in_thread

        self._app = run_in_thread(lambda: _application(arguments))
        self._app.state.queue.start()  # instead of its life: it ends with the process

    def check_health(self) -> None:
        """Asked by Ray Serve, which replaces a replica after an exception."""
        if not self._app.state.queue.is_serving:
            raise RuntimeError("The thread that runs the model has ended.")

    async def answer(self, scope: dict[str, Any], body: bytes) -> AsyncIterator[Message]:
        """The ASGI messages of a response. Leaving it ends what still runs.

        Args:
            scope: of an HTTP request.
            body: the whole of it.
        """
        messages: asyncio.Queue[Message | None] = asyncio.Queue()
        left = asyncio.Event()

        async def wait() -> Message:
            await left.wait()
            return {"type": "http.disconnect"}

        async def run() -> None:
            try:
                await self._app(scope, replayed(body, wait), messages.put)
            except Exception:  # after its response, with status 500
                _log.exception("A request failed.")
            finally:
                messages.put_nowait(None)

        running = asyncio.create_task(run())
        try:
            while (message := await messages.get()) is not None:
                yield message
        finally:
            left.set()
            await running


def _front(model: Any, arguments: Arguments, secrets: list[str]) -> Starlette:
    """Sends requests to replicas, and those of a replica that died to another one.

    Args:
        model: handle of their deployment.
        arguments: with limits.
        secrets: environment variables that have to be here.
    """
    _check_environment(secrets)
    exceptions: Any = import_module("ray.serve.exceptions")
    died: Any = import_module("ray.exceptions").RayActorError
    replicas = model.options(stream=True)

    async def begin(scope: dict[str, Any], body: bytes) -> tuple[Any, Message, Message]:
        """The rest of a response, its start, and the first piece of its body."""
        for _ in range(2):  # a request that ends every replica must not end all of them
            answer = replicas.answer.remote(scope, body)
            try:
                return answer, await anext(answer), await anext(answer)
            except asyncio.CancelledError:
                answer.cancel()
                raise
            except died as error:  # nothing was sent yet, and nothing but the answer depends on it
                _log.warning("A replica died: %s", error)
            except exceptions.BackPressureError:
                raise ApiError(
                    429,
                    f"{arguments.max_waiting} requests wait for a replica already. Try again in "
                    f"{_RETRY_SECONDS} seconds.",
                    code="queue_full",
                    headers={"Retry-After": str(_RETRY_SECONDS)},
                ) from None
            except exceptions.DeploymentUnavailableError:
                break
        raise ApiError(
            503,
            f"Replicas died under the request, or do not start. Try again in {_RETRY_SECONDS} "
            "seconds.",
            code="replica_died",
            headers={"Retry-After": str(_RETRY_SECONDS)},
        )

    async def forward(request: Request) -> Response:
        scope = {name: request.scope[name] for name in _SCOPE}
        # Of the replica's own application, which is mounted nowhere.
        scope["path"] = route_path(request.scope)
        answer, start, piece = await begin(scope, await request.body())

        async def pieces() -> AsyncIterator[bytes]:
            yield piece["body"]
            try:
                while piece.get("more_body"):
                    more = await anext(answer)
                    yield more["body"]
                    piece["more_body"] = more.get("more_body")
            except died as error:
                _log.warning("A replica died: %s", error)
                failure = ApiError(
                    503,
                    "The replica that wrote the answer died. Ask again.",
                    code="replica_died",
                )
                yield f"data: {dumped(failure.content)}\n\n".encode()
            finally:
                answer.cancel()

        response = StreamingResponse(pieces(), status_code=start["status"])
        response.raw_headers = [h for h in start["headers"] if h[0] != b"x-request-id"]
        return response

    async def metrics(_: Request) -> Response:
        raise ApiError(
            404, "Each replica has figures of its own. Read those of Ray Serve, at Ray's agents."
        )

    front = Starlette(
        routes=[
            Route("/metrics", metrics),
            Route("/{path:path}", forward, methods=["GET", "POST"]),
        ],
        exception_handlers=HANDLERS,
    )
    front.add_middleware(
        Gate,
        names_requests=False,  # Ray Serve does, by the names in its logs
        api_key=api_key_of_environment(),
        max_body_bytes=arguments.max_body_bytes,
        client_timeout=arguments.client_timeout,
    )
    return front


def _check_environment(secrets: list[str]) -> None:
    """A server must not stand open because its key stayed on another machine."""
    for name in secrets:
        if name not in os.environ:
            raise UnsupportedGenerationError(
                f"{name} is set where the application was built, and not on this node: set it "
                "before `ray start` on every node, or in the runtime environment."
            )
