"""EndpointModel: a model behind an OpenAI-compatible address, asked as `RagMiddleModel` is."""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any, Unpack
from urllib.parse import urlsplit

import httpx

import rag_middle
from rag_middle.documents import ContextPrompt, parse
from rag_middle.errors import ConfigError, EndpointError, PromptError, UnsupportedGenerationError
from rag_middle.extras import require
from rag_middle.generation import (
    FinishReason,
    Generation,
    GenerationStream,
    MethodLike,
    Prompt,
    Timings,
    Usage,
)
from rag_middle.generation.effect import acts_on, check_documents
from rag_middle.generation.model import GenerateKwargs
from rag_middle.generation.prompts import arranged
from rag_middle.methods import Method, method_name, resolve_method
from rag_middle.notices import EndpointWarning, warn_caller
from rag_middle.options import (
    ENDPOINT_SECONDS,
    OPTIONS,
    GenerationKwargs,
    GenerationOptions,
    checked_options,
)
from rag_middle.tokens import TokenizedPrompt
from rag_middle.wording import shortened

#: Options of `GenerationOptions` that act here or have a field in requests.
_OPTIONS = (
    *("template", "template_options", "system", "max_new_tokens", "temperature", "top_p", "seed"),
    *("stop", "on_overflow", "on_missing_documents", "missing_documents_hint"),
)
#: What a server says of a model that stays the same: vLLM draws ids, and dates the request.
_FACTS = ("owned_by", "root", "max_model_len", "rag_middle")


class EndpointModel:
    """A model behind an OpenAI-compatible address: vLLM, Ollama, `rag-middle serve`, hosted.

    It takes methods that act on the order of the documents. Prompts are strings with document
    markers, or `ContextPrompt`. They go out as the text that the unmodified model reads, in one
    user message. An answer that the server's content filter withheld, or cut, has the
    `finish_reason` ``content_filter``. Any number of threads may call.

    Args:
        endpoint: address of the interface, such as ``"http://localhost:8000/v1"``.
        model: as the server calls it; by default the only one that it has.
        api_key_env: environment variable with the key. By default OPENAI_API_KEY, if the address
            is local or https; ``""`` for no key.
        method: as for `RagMiddleModel`; the server knows nothing of it.
        method_options: the method's parameters, where `method` is a name.
        timeout: seconds until the server answers, or sends the next piece of a stream.
        retries: of a request after failures that may pass, with growing pauses between them.
        extra_body: more fields of each request, such as ``{"reasoning_effort": "low"}``; None
            leaves out one that is sent otherwise (``{"temperature": None}``).

    Raises:
        ConfigError: an invalid address, key or option.
        EndpointError: the server cannot be reached, or refuses; or the method needs the weights.
        MissingExtraError: `openai` is not installed.
    """

    def __init__(
        self,
        endpoint: str,
        model: str | None = None,
        *,
        api_key_env: str | None = None,
        method: MethodLike | None = None,
        method_options: Mapping[str, Any] | None = None,
        timeout: float = ENDPOINT_SECONDS,
        retries: int = 4,
        extra_body: Mapping[str, Any] | None = None,
    ) -> None:
        openai = require("openai", package="openai", what="--endpoint", extra="endpoint")
        self.url = _checked_url(endpoint)
        # Those of httpx come from within a stream.
        self._failures = (openai.OpenAIError, httpx.TransportError, ValueError)
        self._client = openai.OpenAI(
            base_url=self.url,
            api_key=_api_key(api_key_env, self.url) or "none",
            timeout=openai.Timeout(timeout, connect=min(timeout, 10.0)),
            max_retries=retries,
        )
        self._streamed = {"stream": True, "stream_cls": openai.Stream[object]}
        self._listed = self._models()
        if model is None and len(self._listed) != 1:
            names = ", ".join(sorted(self._listed)[:20]) or "it does not list them"
            raise ConfigError(f"Name a model that {self.url} has ({names}) with model (--model).")
        self.name = model or next(iter(self._listed))
        self._extra = dict(extra_body or {})
        self._facts = self._listed.get(self.name, {})
        self._served_method = self._facts.get("rag_middle", {}).get("default_method", "none")
        # It takes documents by themselves, all other servers within the text.
        self._by_field = self._facts.get("owned_by") == "rag-middle"
        self.method = self.checked_method(method or "none", method_options)

    @property
    def context_window(self) -> int | None:
        """Tokens that prompt and answer may have together, where the server says so (vLLM)."""
        return self._facts.get("max_model_len")

    def identity(self) -> dict[str, Any]:
        """What tells this model from others: its name, the address, what the server says of it.

        A server does not say which weights it runs: give a model that is served otherwise than
        before (with a profile, say) another name there, or keep its records in another file.
        """
        under = "" if self._served_method == "none" else f" under {self._served_method}"
        return {
            "name": f"{self.name}{under}",
            "endpoint": self.url,
            "server": self._facts,
            "send_documents": "field" if self._by_field else "text",
            "extra_body": self._extra,
        }

    def software(self) -> dict[str, str]:
        """Versions, and the address in place of a device."""
        version, python = rag_middle.__version__, platform.python_version()
        return {"rag-middle": version, "python": python, "device": self.url}

    def checked_method(
        self, method: MethodLike, method_options: Mapping[str, Any] | None = None
    ) -> Method:
        """A method that can be used here; raises `EndpointError` if it needs the weights."""
        resolved = resolve_method(method, method_options)
        for part in resolved.parts:
            if (type(part).plan is not Method.plan or part.combines) and not part.is_neutral:
                raise _needs_weights(part)
        arrangement(ContextPrompt(documents=["a", "b", "c"], suffix="?"), resolved)
        return resolved

    def generate(self, prompt: Prompt, **options: Unpack[GenerateKwargs]) -> Generation:
        """Generate text for one prompt.

        Args:
            prompt: a string with document markers, or a `ContextPrompt`. It is not measured: most
                servers refuse what does not fit.
            options: `method`, `method_options`, and what of `GenerationOptions` the interface has.

        Raises:
            EndpointError: no answer comes, or the method needs the weights.
            PromptError: another kind of prompt.
            UnsupportedGenerationError: options that the interface does not have.

        Warns:
            EndpointWarning: the server counts fewer tokens than the prompt has words.
        """
        [(_, generation)] = self.as_completed([prompt], **options)
        return generation

    def as_completed(
        self,
        prompts: Sequence[Prompt],
        *,
        max_batch_size: int = 8,
        **options: Unpack[GenerateKwargs],
    ) -> Iterator[tuple[int, Generation]]:
        """As `generate`, for several prompts: 0-based index of each and its text, as they come.

        `max_batch_size` requests are on their way at a time.
        """
        exchanges = self._exchanges(prompts, **options)
        pool = ThreadPoolExecutor(max_batch_size, "rag-middle-endpoint")
        futures = {pool.submit(self._answer, it): index for index, it in enumerate(exchanges)}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def stream(self, prompt: Prompt, **options: Unpack[GenerateKwargs]) -> GenerationStream:
        """As `generate`, piece by piece; errors of the server are raised by reading them.

        A stream that is closed ends with the next piece.
        """
        [exchange] = self._exchanges([prompt], **options)
        ids = tuple(document.id for document in exchange.prompt.documents)
        return GenerationStream(partial(self._answer, exchange), document_ids=ids)

    def _exchanges(
        self,
        prompts: Sequence[Prompt],
        method: MethodLike | None = None,
        method_options: Mapping[str, Any] | None = None,
        **options: Unpack[GenerationKwargs],
    ) -> list[_Exchange]:
        settings = checked_options(options, allowed=GenerationKwargs)
        for name, option in OPTIONS.items():
            value = getattr(settings, name)
            is_sent = name in _OPTIONS and (name, value) != ("template", "raw")
            if callable(value) or not (is_sent or value == option.default):
                raise UnsupportedGenerationError(
                    f"{name}={value!r:.100} is no option of the OpenAI interface: leave it out, or "
                    "hand the server a field that it knows with extra_body={...}."
                )
        chosen = self.method
        if method is not None or method_options:
            chosen = self.checked_method(method or "none", method_options)
        exchanges = []
        for index, seed in enumerate(settings.seeds(len(prompts))):
            prompt = arrangement(prompts[index], chosen)
            layout, body = _stand_in(prompt).layout, self._body(prompt, settings, seed)
            check_documents(chosen, layout, settings, index)
            name, applied = method_name(chosen), acts_on(chosen, layout)
            exchange = _Exchange(prompt=prompt, body=body, method=name, applied=applied, seed=seed)
            exchanges.append(exchange)
        return exchanges

    def _body(
        self, prompt: ContextPrompt, options: GenerationOptions, seed: int | None
    ) -> dict[str, Any]:
        content: Any = prompt.text
        if self._by_field:
            documents = [
                {"type": "text-plain", "id": it.id or str(at), "title": it.title, "text": it.text}
                for at, it in enumerate(prompt.documents)
            ]
            before, after = ({"type": "text", "text": it} for it in (prompt.prefix, prompt.suffix))
            content = [before, *documents, after]
        messages = [{"role": "user", "content": content}]
        if options.system is not None:
            messages.insert(0, {"role": "system", "content": options.system})
        body = {
            "model": self.name,
            "messages": messages,
            "chat_template_kwargs": options.template_options,
            "max_tokens": options.max_new_tokens,
            "temperature": options.temperature,
            "top_p": options.top_p if options.samples else None,
            "seed": seed if options.samples else None,
            "stop": [*options.stop] or None,
            **self._extra,
        }
        return {name: value for name, value in body.items() if value is not None}

    def _answer(
        self,
        exchange: _Exchange,
        emit: Callable[[str], None] | None = None,
        stopped: threading.Event | None = None,
    ) -> Generation:
        start, body, how = perf_counter(), exchange.body, {}
        if emit is not None:
            body = {"stream_options": {"include_usage": True}, **body, "stream": True}
            how = self._streamed
        try:
            answer: Any = self._client.post("/chat/completions", body=body, cast_to=object, **how)
            for event in [answer] if emit is None else answer:
                piece = exchange.take(event)
                if emit is not None and piece:
                    emit(piece)
                if stopped is not None and stopped.is_set():
                    exchange.finish_reason = "cancelled"
                    break
            if exchange.finish_reason is None:
                raise ValueError(f"no end of an answer, which is {exchange.text!r:.200} so far")
        except self._failures as error:
            if getattr(error, "code", None) != "content_filter":
                raise self._error(error, self._listed) from error
            exchange.finish_reason = "content_filter"
        read = exchange.usage.get("prompt_tokens") or 0
        written = exchange.usage.get("completion_tokens") or 0
        self._check_read(exchange, read)
        name, applied, served = exchange.method, exchange.applied, exchange.served
        if name == "none":
            name = served.get("method", self._served_method)
            applied = served.get("applied", name != "none")
        documents = exchange.prompt.documents
        order = served.get("document_order", range(len(documents)))
        return Generation(
            text=exchange.text,
            token_ids=(),
            finish_reason=exchange.finish_reason,
            stop=None,
            usage=Usage(prompt_tokens=read, completion_tokens=written),
            timings=Timings(tokenize=0.0, wait=0.0, prefill=perf_counter() - start, decode=0.0),
            method=name,
            applied=applied,
            documents=len(documents),
            document_ids=tuple(documents[index].id for index in order),
            dropped_documents=(),
            seed=exchange.seed,
        )

    def _check_read(self, exchange: _Exchange, tokens: int) -> None:
        """Refuse or warn of what would pass for a model that loses documents."""
        documents, words = len(exchange.prompt.documents), len(exchange.prompt.text.split())
        if self._by_field:
            if exchange.text and exchange.served.get("documents") != documents:
                raise EndpointError(f"{self.url} did not read all {documents} documents.")
        elif 0 < tokens < words:
            problem = (
                f"{self.url} read {tokens:,} tokens of {words:,} words: it has cut the prompt. "
                "Raise its context length (Ollama: OLLAMA_CONTEXT_LENGTH), or send fewer documents."
            )
            warn_caller(EndpointWarning(problem))

    def _models(self) -> dict[str, dict[str, Any]]:
        """What the server says of its models, by name; nothing where it has no list of them."""
        try:
            # Not tried again: a wrong address is told at once.
            listed: Any = self._client.get("/models", cast_to=object, options={"max_retries": 0})
            return {
                entry["id"]: {name: entry[name] for name in _FACTS if name in entry}
                for entry in listed.get("data") or ()
            }
        except self._failures as error:
            if getattr(error, "status_code", 0) in (404, 405, 501):
                return {}
            raise self._error(error) from error

    def _error(self, error: Exception, listed: Iterable[str] = ()) -> EndpointError:
        """What went wrong, in the server's own words where it says some, and what to check."""
        status, body = getattr(error, "status_code", None), getattr(error, "body", None)
        words = body.get("message") if isinstance(body, Mapping) else None
        words = f"{status}: {words}" if words else f"{error} {error.__cause__ or ''}"
        names = ", ".join(sorted(listed)[:20])
        has = f" It has these models: {names}." if status == 404 and names else ""
        check = ""
        if status in (None, 401, 403, 404) or status >= 500:  # of others the server's words say it
            check = " Check the address (--endpoint), the key (--api-key-env) and the timeout."
        return EndpointError(
            f"No answer from {self.url}: {shortened(words.strip()).rstrip('.')}.{has}{check} A run "
            "with records goes on where it stopped."
        )


@dataclass(slots=True, kw_only=True)
class _Exchange:
    """What is sent for a prompt, and the answer as far as it has come.

    Attributes:
        applied: whether the method acts on the prompt.
        served: what `rag-middle serve` says of its answer.
    """

    prompt: ContextPrompt
    body: Mapping[str, Any]
    method: str
    applied: bool
    seed: int | None
    text: str = ""
    finish_reason: FinishReason | None = None
    usage: Mapping[str, int | None] = field(default_factory=dict)
    served: Mapping[str, Any] = field(default_factory=dict)

    def take(self, event: Any) -> str:
        """Add an event of a stream, or a whole reply, and return its text."""
        choice = (event.get("choices") or [{}])[0]
        message = choice.get("message") or choice.get("delta") or {}
        piece: str = message.get("content") or ""
        self.text += piece
        reason: Any = "content_filter" if message.get("refusal") else choice.get("finish_reason")
        if reason:
            self.finish_reason = reason if reason in ("length", "content_filter") else "stop"
        self.usage = event.get("usage") or self.usage
        self.served = event.get("rag_middle") or self.served
        return piece


def arrangement(prompt: Prompt, method: Method) -> ContextPrompt:
    """The prompt as it is sent, with its documents in the method's order."""
    if not isinstance(prompt, str | ContextPrompt):
        raise PromptError("A model behind an HTTP address takes a string or a ContextPrompt.")
    sent = method.rewrite(parse(prompt) if isinstance(prompt, str) else prompt)
    no_model: Any = None
    try:
        ordered = arranged(_stand_in(sent), method, no_model)
    except AttributeError as error:  # it looks at what a model does with the prompt
        raise _needs_weights(method) from error
    return sent.with_documents(sent.documents[index] for [index] in ordered.documents_ids)


def _stand_in(prompt: ContextPrompt) -> TokenizedPrompt:
    """The prompt in tokens without a tokenizer: a document's only token is its 0-based index."""
    return TokenizedPrompt.assembled(
        prefix=[0],
        documents=[[index] for index in range(len(prompt.documents))],
        suffix=[0],
        document_ids=[document.id for document in prompt.documents],
        scores=prompt.scores,
    )


def _needs_weights(method: Method) -> EndpointError:
    return EndpointError(
        f"{method.name} needs the weights of the model. Run it where they are (--model without "
        "--endpoint), or serve the model with it: `rag-middle serve --method`, or vLLM's plugin."
    )


def _checked_url(url: str) -> str:
    """The address that a user wrote; without a path, ``/v1`` is meant.

    Reports show it, so it must not hold a password or a query.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or {*"@?#"} & {*url}:
        raise ConfigError(
            "endpoint must be an address such as http://localhost:8000/v1, without a password or "
            "a query. Name the environment variable of a key with api_key_env."
        )
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/') or '/v1'}"


def _api_key(variable: str | None, url: str) -> str | None:
    """The key in a variable, which its error does not quote: it may be a key itself."""
    if variable is None:  # of OpenAI: to whom it was not named for it leaves encrypted only
        is_local = urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1")
        is_safe = is_local or url.startswith("https:")
        return os.environ.get("OPENAI_API_KEY") if is_safe else None
    if variable and not os.environ.get(variable):
        raise ConfigError("api_key_env must name an environment variable that is set: export it.")
    return os.environ.get(variable)
