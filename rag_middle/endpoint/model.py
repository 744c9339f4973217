"""EndpointModel: a model behind an OpenAI-compatible address, asked as `RagMiddleModel` is."""

from __future__ import annotations

import platform
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Unpack, get_args

import rag_middle
from rag_middle.documents import ContextPrompt, parse
from rag_middle.endpoint.server import Reply, Server
from rag_middle.errors import ConfigError, EndpointError, PromptError, UnsupportedGenerationError
from rag_middle.generation import (
    Generation,
    GenerationKwargs,
    GenerationOptions,
    GenerationStream,
    MethodLike,
    Prompt,
    Timings,
    Usage,
)
from rag_middle.generation.effect import acts_on, check_documents
from rag_middle.generation.identity import warn_of_number
from rag_middle.generation.prompts import arranged, branched
from rag_middle.methods import Method, method_name, resolve_method
from rag_middle.notices import EndpointWarning, warn_caller
from rag_middle.options import ENDPOINT_SECONDS, OPTIONS, SendDocuments, checked_options
from rag_middle.thinking import answer_after_thinking
from rag_middle.tokens import TokenizedPrompt

#: Options of `GenerationOptions` that act here or have a field in requests.
_OPTIONS = (
    *("template", "system", "max_new_tokens", "temperature", "top_p", "seed", "stop"),
    *("on_overflow", "on_missing_documents", "missing_documents_hint"),
)


@dataclass(frozen=True, slots=True)
class _Question:
    """A prompt on its way, as one request for each order of its documents."""

    method: Method
    prompts: tuple[ContextPrompt, ...]
    options: GenerationOptions
    seed: int | None


class EndpointModel:
    """A model behind an OpenAI-compatible address: vLLM, Ollama, `rag-middle serve`, hosted.

    It gives answers and nothing else, so it takes methods that act around a model: on the order of
    the documents, or by a vote over whole answers.

    Prompts are strings with document markers, or `ContextPrompt`. They go out as the text that the
    unmodified model reads, in one user message, or with ``template="raw"`` as a prompt for plain
    completion. Most servers read control tokens in it, so that documents can write them; behind
    `rag-middle serve` they stay text. An answer that the server's content filter withheld, or cut,
    has the `finish_reason` ``content_filter``, and no vote. Any number of threads may call.

    Args:
        endpoint: address of the interface, such as ``"http://localhost:8000/v1"``.
        model: as the server calls it; by default the only one that it has.
        api_key_env: environment variable with the key. By default OPENAI_API_KEY, if it is set
            and the address is local or https; ``""`` for no key.
        method: as for `RagMiddleModel`; the server knows nothing of it.
        method_options: the method's parameters, where `method` is a name.
        send_documents: ``"text"`` within the message; ``"field"`` by themselves, for `rag-middle
            serve`, whose replies must say that it read them; ``"auto"`` that there, text elsewhere.
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
        send_documents: SendDocuments = "auto",
        timeout: float = ENDPOINT_SECONDS,
        retries: int = 4,
        extra_body: Mapping[str, Any] | None = None,
    ) -> None:
        if send_documents not in (choices := get_args(SendDocuments)):
            raise ConfigError(
                f"send_documents must be one of {', '.join(choices)}, got {send_documents!r}."
            )
        self._extra = dict(extra_body or {})
        self._server = Server(endpoint, api_key_env, timeout=timeout, retries=retries)
        self._url = self._server.url
        listed = self._server.models()
        if model is None and len(listed) != 1:
            names = ", ".join(sorted(listed)[:20]) or "it does not list them"
            raise ConfigError(f"Name a model that {self._url} has ({names}) with model (--model).")
        self.name = model or next(iter(listed))
        self._facts = listed.get(self.name, {})
        said = self._facts.get("rag_middle") or {}
        is_ours = self._facts.get("owned_by") == "rag-middle"
        self._served_method: str = said.get("default_method") or "none"
        self._by_field = is_ours if send_documents == "auto" else send_documents == "field"
        self.method = self.checked_method("none" if method is None else method, method_options)

    # -- what it is -------------------------------------------------------------------------------

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
            "endpoint": self._url,
            "server": self._facts,
            "send_documents": "field" if self._by_field else "text",
            "extra_body": self._extra,
        }

    def software(self) -> dict[str, str]:
        """Versions, and the address in place of a device."""
        return {
            "rag-middle": rag_middle.__version__,
            "python": platform.python_version(),
            "device": self._url,
        }

    def checked_method(
        self, method: MethodLike, method_options: Mapping[str, Any] | None = None
    ) -> Method:
        """A method object that can be used here.

        Raises:
            EndpointError: it needs the weights.
            RagMiddleError: as `resolve_method` does.
        """
        resolved = resolve_method(method, method_options)
        _check_needs_no_weights(resolved)
        return resolved

    # -- asking -----------------------------------------------------------------------------------

    def generate(
        self,
        prompt: Prompt,
        *,
        method: MethodLike | None = None,
        method_options: Mapping[str, Any] | None = None,
        **options: Unpack[GenerationKwargs],
    ) -> Generation:
        """Generate text for one prompt.

        Args:
            prompt: see `EndpointModel`.
            method: for this call, instead of the model's.
            method_options: its parameters.
            options: fields of `GenerationOptions` that the OpenAI interface has. Prompts cannot be
                measured here: most servers refuse what does not fit, others cut it (Ollama).

        Raises:
            EndpointError: the server cannot be reached, refuses, or sends no answer; or the method
                needs the weights.
            UnsupportedGenerationError: options that the interface does not have.
            PromptError: neither a string nor a `ContextPrompt`.

        Warns:
            EndpointWarning: the server counts fewer tokens than the prompt has words.
        """
        around: dict[str, Any] = {"method": method, "method_options": method_options}
        [(_, generation)] = self.as_completed([prompt], **around, **options)
        return generation

    def as_completed(
        self,
        prompts: Sequence[Prompt],
        *,
        method: MethodLike | None = None,
        method_options: Mapping[str, Any] | None = None,
        max_batch_size: int = 8,
        **options: Unpack[GenerationKwargs],
    ) -> Iterator[tuple[int, Generation]]:
        """Generate for several prompts: 0-based index of each and its text, as they come.

        `max_batch_size` requests are on their way at a time. Arguments and errors are those of
        `generate`.
        """
        questions = self._questions(prompts, method, method_options, options)
        pool = ThreadPoolExecutor(max_batch_size, "rag-middle-endpoint")
        asked = {pool.submit(self._answer, each): index for index, each in enumerate(questions)}
        try:
            for future in as_completed(asked):
                self._warn_of_cut(questions[asked[future]], future.result())
                yield asked[future], future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def stream(
        self,
        prompt: Prompt,
        *,
        method: MethodLike | None = None,
        method_options: Mapping[str, Any] | None = None,
        **options: Unpack[GenerationKwargs],
    ) -> GenerationStream:
        """Generate text for one prompt, piece by piece; in one piece where answers are voted on.

        Arguments and errors are those of `generate`; those of the server are raised while the
        pieces are read. A stream that is closed ends with the next piece.
        """
        [question] = self._questions([prompt], method, method_options, options)

        def work(emit: Callable[[str], None], stopped: threading.Event) -> Generation:
            if len(question.prompts) == 1:
                generation = self._answer(question, emit, stopped)
            else:
                generation = self._answer(question)
                emit(generation.text)
            self._warn_of_cut(question, generation)
            return generation

        ids = tuple(document.id for document in question.prompts[0].documents)
        return GenerationStream(work, document_ids=ids)

    def _questions(
        self,
        prompts: Sequence[Prompt],
        method: MethodLike | None,
        method_options: Mapping[str, Any] | None,
        options: GenerationKwargs,
    ) -> list[_Question]:
        settings = checked_options(options, allowed=GenerationKwargs)
        for name in OPTIONS:
            value = getattr(settings, name)
            if callable(value) or (name not in _OPTIONS and value != OPTIONS[name].default):
                raise UnsupportedGenerationError(
                    f"{name} is no option of the OpenAI interface: leave it out, or hand the "
                    "server a field that it knows with extra_body={...}."
                )
        chosen = self.method
        if method is not None or method_options:
            chosen = self.checked_method("none" if method is None else method, method_options)
        questions = []
        seeds = settings.seeds(len(prompts))
        for index, (prompt, seed) in enumerate(zip(prompts, seeds, strict=True)):
            requests = arrangements(_as_context(prompt), chosen)
            first = requests[0]
            check_documents(chosen, _stand_in(first).layout, settings, index, prompt=first)
            warn_of_number(chosen, len(first.documents))
            questions.append(_Question(chosen, requests, settings, seed))
        return questions

    def _warn_of_cut(self, question: _Question, generation: Generation) -> None:
        words = sum(len(prompt.text.split()) for prompt in question.prompts)
        if 0 < generation.usage.prompt_tokens < words and not self._by_field:
            warn_caller(
                EndpointWarning(
                    f"{self._url} read {generation.usage.prompt_tokens:,} tokens of {words:,} "
                    "words: it has cut the prompt, as Ollama does beyond its context length. Raise "
                    "that (num_ctx, OLLAMA_CONTEXT_LENGTH), or send fewer documents. Answers to "
                    "cut prompts say nothing of positions."
                )
            )

    def _answer(
        self,
        question: _Question,
        emit: Callable[[str], None] | None = None,
        stopped: threading.Event | None = None,
    ) -> Generation:
        """One answer: of its only request, or of the one that the method chooses."""
        start, method, first = perf_counter(), question.method, question.prompts[0]
        replies = []
        for prompt in question.prompts:
            reply = Reply()
            for piece in self._server.ask(
                self._body(prompt, question), reply, streamed=emit is not None
            ):
                if stopped is not None and stopped.is_set():
                    reply.finish_reason = reply.finish_reason or "cancelled"
                    break
                if emit is not None and piece:
                    emit(piece)
            self._check_read(reply, len(first.documents))
            replies.append(reply)
        chosen = _voted(method, replies)
        served = chosen.served or {}
        name = method_name(method)
        applied = acts_on(method, _stand_in(first).layout)
        if name == "none":
            name = served.get("method") or self._served_method
            applied = served.get("applied", name != "none")
        order = served.get("document_order") or range(len(first.documents))
        return Generation(
            text=chosen.text,
            token_ids=(),
            finish_reason=chosen.finish_reason or "stop",
            stop=None,
            usage=Usage(
                prompt_tokens=sum(reply.prompt_tokens for reply in replies),
                completion_tokens=sum(reply.new_tokens for reply in replies),
            ),
            timings=Timings(tokenize=0.0, wait=0.0, prefill=perf_counter() - start, decode=0.0),
            method=name,
            applied=applied,
            documents=len(first.documents),
            document_ids=tuple(first.documents[index].id for index in order),
            dropped_documents=(),
            seed=question.seed,
        )

    def _body(self, prompt: ContextPrompt, question: _Question) -> dict[str, Any]:
        """A request for one answer: to a chat, or to complete plain text."""
        options, text = question.options, prompt.text
        body: dict[str, Any] = {"model": self.name}
        content: str | list[dict[str, str]] = text
        if self._by_field:
            text = prompt.prefix + prompt.suffix
            documents = [
                {"id": d.id or str(index), "title": d.title or "", "text": d.text}
                for index, d in enumerate(prompt.documents)
            ]
            content = [
                {"type": "text", "text": prompt.prefix},
                *({"type": "text-plain", **document} for document in documents),
                {"type": "text", "text": prompt.suffix},
            ]
            body |= {"documents": documents} if options.template == "raw" else {}
        if options.template == "raw":
            body["prompt"] = text if options.system is None else f"{options.system}\n\n{text}"
        else:
            system = (
                [] if options.system is None else [{"role": "system", "content": options.system}]
            )
            body["messages"] = [*system, {"role": "user", "content": content}]
        body |= {"max_tokens": options.max_new_tokens, "temperature": options.temperature}
        if options.samples:
            body |= {"top_p": options.top_p, "seed": question.seed}
        body["stop"] = [*options.stop] or None
        return {name: value for name, value in {**body, **self._extra}.items() if value is not None}

    def _check_read(self, reply: Reply, documents: int) -> None:
        """Refuse what would pass for a model that loses documents."""
        if not reply.text and reply.finish_reason == "length":
            raise EndpointError(
                f"The model at {self._url} has spent its tokens before it answered, on thinking. "
                "Allow more with max_new_tokens, or turn thinking off on the server."
            )
        has_answer = reply.text or reply.finish_reason not in ("cancelled", "content_filter")
        read = (reply.served or {}).get("documents") or 0
        if self._by_field and has_answer and read != documents:
            raise EndpointError(
                f"{self._url} says that it read {read} of {documents} documents. "
                "send_documents='field' is for `rag-middle serve`: leave it out for other servers."
            )


# -- methods without weights ----------------------------------------------------------------------


class _NoWeights:
    """Stands in for the model in `Method.arrange`: whatever is asked of it is out of reach."""

    def __init__(self, method: Method) -> None:
        self._method = method

    def __getattr__(self, name: str) -> Any:
        raise _needed(self._method, "looks into the model before it answers")


def arrangements(prompt: ContextPrompt, method: Method) -> tuple[ContextPrompt, ...]:
    """The prompts that are sent in place of one, each with its documents in another order."""
    prompt = method.rewrite(prompt)
    weights: Any = _NoWeights(method)
    branches = branched(arranged(_stand_in(prompt), method, weights), method, weights)
    return tuple(
        prompt.with_documents(prompt.documents[index] for [index] in branch.documents_ids)
        for branch in branches
    )


def _check_needs_no_weights(method: Method) -> None:
    """Raise `EndpointError` unless the method, by its hooks, acts around a model only."""
    for part in method.parts:
        if not part.is_neutral and type(part).plan is not Method.plan:
            raise _needed(part, "changes what happens inside the model")
        if not part.is_neutral and part.combines and not part.votes:
            raise _needed(part, "combines distributions over tokens")
    arrangements(ContextPrompt(documents=["a", "b", "c"], suffix="?"), method)


def _as_context(prompt: Prompt) -> ContextPrompt:
    if isinstance(prompt, ContextPrompt):
        return prompt
    if isinstance(prompt, str):
        return parse(prompt)
    raise PromptError(
        "A model behind an HTTP address takes a string or a ContextPrompt, got "
        f"{type(prompt).__name__}. Send chat messages with that server's own client."
    )


def _stand_in(prompt: ContextPrompt) -> TokenizedPrompt:
    """The prompt in tokens, as far as that is known without a tokenizer.

    A document's only token is its 0-based index, which tells it wherever a method moves it.
    """
    return TokenizedPrompt.assembled(
        prefix=[0],
        documents=[[index] for index in range(len(prompt.documents))],
        suffix=[0],
        document_ids=[document.id for document in prompt.documents],
        scores=prompt.scores,
    )


def _needed(method: Method, does: str) -> EndpointError:
    return EndpointError(
        f"{method.name} {does}, and this one is behind an HTTP address. Run it where the weights "
        "are (`--model` without an endpoint, `RagMiddleModel` in Python), or start a server with "
        "it: `rag-middle serve --method`, or vLLM with rag-middle-vllm."
    )


def _voted(method: Method, replies: Sequence[Reply]) -> Reply:
    """The reply that a method chooses; withheld and unfinished ones vote only if all are such."""
    texts = [answer_after_thinking(reply.text) for reply in replies]
    voters = [
        (reply, text)
        for reply, text in zip(replies, texts, strict=True)
        if reply.finish_reason != "content_filter" and text is not None
    ]
    if len(voters) < 2:
        return voters[0][0] if voters else replies[0]
    return voters[method.vote([text for _, text in voters])][0]
