"""EndpointModel: a model behind an OpenAI-compatible address, asked as `RagMiddleModel` is."""

from __future__ import annotations

import platform
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Unpack, get_args

import rag_middle
from rag_middle.documents import ContextPrompt, parse
from rag_middle.endpoint.arrangements import arrangements, check_acts_around, stand_in
from rag_middle.endpoint.requests import (
    check_options,
    check_sending,
    check_served,
    request_body,
)
from rag_middle.endpoint.server import Reply, Server
from rag_middle.errors import (
    ConfigError,
    MethodConfigError,
    PromptError,
    RagMiddleError,
    WeightsNeededError,
)
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
from rag_middle.methods import Method, NoMethod, method_name, resolve_method
from rag_middle.notices import EndpointWarning, warn_caller
from rag_middle.options import ENDPOINT_SECONDS, SendDocuments, checked_options
from rag_middle.plain_data import check_whole
from rag_middle.thinking import answer_after_thinking

#: How chat templates of today spell control tokens.
_CONTROL_TOKEN = re.compile(
    r"<\|[\w ]{1,40}\|>|<｜[^<>｜]{1,40}｜>"
    r"|\[/?(?:INST|SYSTEM_PROMPT|TOOL_RESULTS|TOOL_CALLS|AVAILABLE_TOOLS)\]"
    r"|<(?:start|end)_of_turn>|<\|(?:turn|channel|tool_\w+)>|<(?:turn|channel|tool_\w+)\|>"
    r"|</s>|<eos>"
)
_CHARACTERS_PER_TOKEN = 4  # of English text, roughly, under the vocabularies of today


@dataclass(frozen=True, slots=True)
class Workload:
    """What a run will cost, before it begins.

    Attributes:
        requests: to the server, without those that have to be repeated.
        prompt_tokens: of all of them, roughly: a token for four characters.
        new_tokens: at most.
    """

    requests: int
    prompt_tokens: int
    new_tokens: int


@dataclass(frozen=True, slots=True)
class _Question:
    """A prompt on its way: the requests it takes, and what is known of its answer."""

    method: Method
    served_method: str | None  # that the server is asked to apply
    prompts: tuple[ContextPrompt, ...]  # one per request
    options: GenerationOptions
    seed: int | None
    document_ids: tuple[str | None, ...]
    applied: bool


class EndpointModel:
    """A model behind an OpenAI-compatible address: vLLM, Ollama, `rag-middle serve`, hosted.

    It gives answers and nothing else, so it takes methods that act around a model: on the order of
    the documents, or by a vote over whole answers. Where the server is one of ours, documents can
    be sent as documents, and it applies any method that it allows.

    An answer that the server's content filter withheld, or cut, is no error: its `finish_reason` is
    ``content_filter``, and its text what came, mostly none. Such answers have no vote. `openai`
    (the extra ``endpoint``) sends the requests.

    Prompts are strings with document markers, or `ContextPrompt`. They go out as the text that the
    unmodified model reads, in one user message, or with ``template="raw"`` as a prompt for plain
    completion. The server turns that text into tokens: most read control tokens in it, so that
    nothing keeps documents from writing them. Behind `rag-middle serve` they stay text.
    Any number of threads may call.

    Args:
        endpoint: address of the interface, such as ``"http://localhost:8000/v1"``.
        model: as the server calls it; by default the only one that it has.
        api_key_env: environment variable with the key. By default OPENAI_API_KEY, if it is set
            and the address is local or https; ``""`` for no key.
        method: as for `RagMiddleModel`; None for the one that the server uses where a request names
            none.
        method_options: the method's parameters, where `method` is a name.
        send_documents: ``"text"`` within the message; ``"marked"`` the same with markers, for a
            server that shares ``RAG_MIDDLE_MARKER_KEY``; ``"field"`` by themselves, as `documents`
            beside the messages or as blocks behind instructions. The last two are for
            `rag-middle serve`, whose replies must say that it read them, and name the method in
            each request. ``"auto"``: ``"field"`` there, ``"text"`` elsewhere.
        timeout: seconds until the server answers, or sends the next piece of a stream.
        retries: of a request after failures that may pass, with growing pauses between them.
        extra_body: more fields of each request, such as ``{"reasoning_effort": "low"}``; None
            leaves out one that is sent otherwise (``{"temperature": None}``).

    Raises:
        ConfigError: an invalid address, key or option.
        EndpointError: no connection, or no answer in time.
        EndpointError: the server refuses the key, or the request.
        MissingExtraError: `openai` is not installed.
        WeightsNeededError: the method needs the weights.
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
        if send_documents not in get_args(SendDocuments):
            raise ConfigError(
                f"send_documents must be one of {', '.join(get_args(SendDocuments))}, got "
                f"{send_documents!r}.",
            )
        self._extra = dict(extra_body or {})
        check_sending(send_documents, self._extra)
        self._server = Server(endpoint, api_key_env, timeout=timeout, retries=retries)
        listed = self._server.models()
        self.name = _chosen_name(model, listed, self._server.url)
        self._facts = listed.get(self.name, {})
        if send_documents == "auto":
            send_documents = "text" if self._offered is None else "field"
        self._send_documents = send_documents
        self._as_served = method is None and not method_options
        self._method = self.checked_method("none" if method is None else method, method_options)

    # -- what it is -------------------------------------------------------------------------------

    @property
    def method(self) -> Method:
        """What calls run under that name no method of their own."""
        return self._method

    @property
    def context_window(self) -> int | None:
        """Tokens that prompt and answer may have together, where the server says so (vLLM)."""
        return self._facts.get("max_model_len")

    @property
    def offered_methods(self) -> tuple[str, ...]:
        """Methods that `rag-middle serve` applies when a request names them, and that need it.

        Those without a name of their own on this side (a server's profiles) are left out.
        """
        if self._send_documents == "text":
            return ()
        names = []
        for name in self._offered or ():
            if "profile:" in name:  # a file there: none is read here because a server names it
                continue
            with suppress(RagMiddleError):
                if self.checked_method(name).name != "none":
                    names.append(name)
        return tuple(names)

    @property
    def _offered(self) -> tuple[str, ...] | None:
        """What one of our servers says that requests may name; None: it is another server."""
        said = self._facts.get("rag_middle") or {}
        ours = self._facts.get("owned_by") == "rag-middle" and "methods" in said
        return tuple(said["methods"]) if ours else None

    @property
    def served_under(self) -> str | None:
        """The method that the server says it uses where a request names none."""
        return (self._facts.get("rag_middle") or {}).get("default_method")

    def identity(self) -> dict[str, Any]:
        """What tells this model from others: its name, the address, what the server says of it.

        A server does not say which weights it runs: give a model that is served otherwise than
        before (with a profile, say) another name there, or keep its records in another file.
        """
        name = self.name
        if self._send_documents == "text" and self.served_under not in (None, "none"):
            name += f" under {self.served_under}"
        return {
            "name": name,
            "endpoint": self._server.url,
            "server": self._facts,
            "send_documents": self._send_documents,
            "extra_body": self._extra,
        }

    def software(self) -> dict[str, str]:
        """Versions, and the address in place of a device."""
        return {
            "rag-middle": rag_middle.__version__,
            "python": platform.python_version(),
            "device": self._server.url,
        }

    def checked_method(
        self, method: MethodLike, method_options: Mapping[str, Any] | None = None
    ) -> Method:
        """A method object that can be used here.

        Raises:
            WeightsNeededError: it needs the weights, and the server is not asked to apply it.
            RagMiddleError: as `resolve_method` does.
        """
        resolved = resolve_method(method, method_options)
        self._served_method(resolved)
        return resolved

    def _served_method(self, method: Method) -> str | None:
        """The method that the server shall apply; None where it is told nothing of methods."""
        name = "none"
        try:
            check_acts_around(method)
        except WeightsNeededError:
            if self._send_documents == "text":
                raise
            name = _name_alone(method)
        if self._send_documents == "text":
            return None
        if self._offered is not None and name not in self._offered:
            raise WeightsNeededError(
                f"{self._server.url} offers {', '.join(self._offered)}, and not {name}: start it "
                f"with `--allow-method {name}`, or measure what it serves, with "
                "send_documents='text' (--send-documents text).",
            )
        return name

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
            options: fields of `GenerationOptions` that the OpenAI interface has. Without a
                tokenizer here, prompts cannot be measured: whatever `on_overflow` says, most
                servers refuse what does not fit. Others cut it (Ollama).

        Raises:
            EndpointError: the server cannot be reached, refuses, or replies with something else.
            UnsupportedGenerationError: options that the interface does not have.
            PromptError: neither a string nor a `ContextPrompt`.
            WeightsNeededError: the method needs the weights.

        Warns:
            EndpointWarning: the server counts fewer tokens than the prompt has words, so it has
                cut it; or the prompt holds what the server may read as control tokens.
        """
        return self.batch([prompt], method=method, method_options=method_options, **options)[0]

    def batch(
        self,
        prompts: Sequence[Prompt],
        *,
        method: MethodLike | None = None,
        method_options: Mapping[str, Any] | None = None,
        max_batch_size: int = 8,
        **options: Unpack[GenerationKwargs],
    ) -> list[Generation]:
        """Generate for several prompts; results come in the order of the prompts.

        Args:
            prompts: any number.
            method: as for `generate`, like `method_options` and `options`.
            method_options: see there.
            max_batch_size: requests at a time.
            options: see there.
        """
        answers = dict(
            self.as_completed(
                prompts,
                method=method,
                method_options=method_options,
                max_batch_size=max_batch_size,
                **options,
            )
        )
        return [answers[index] for index in range(len(prompts))]

    def as_completed(
        self,
        prompts: Sequence[Prompt],
        *,
        method: MethodLike | None = None,
        method_options: Mapping[str, Any] | None = None,
        max_batch_size: int = 8,
        **options: Unpack[GenerationKwargs],
    ) -> Iterator[tuple[int, Generation]]:
        """Like `batch`, each answer as soon as it is there: its prompt's 0-based index, and it.

        After an error no further prompt is asked; what is on its way is still yielded, and then
        the error is raised.
        """
        check_whole("max_batch_size", max_batch_size, least=1)
        questions = self._questions(prompts, method, method_options, options)
        stopped = threading.Event()

        def ask(question: _Question) -> Generation | None:
            if stopped.is_set():
                return None
            try:
                return self._answer(question, stopped)
            except BaseException:
                stopped.set()
                raise

        pool = ThreadPoolExecutor(max_batch_size, "rag-middle-endpoint")
        asked = {pool.submit(ask, question): at for at, question in enumerate(questions)}
        failure: BaseException | None = None
        try:
            for future in as_completed(asked):
                if future.exception() is not None:
                    failure = failure or future.exception()
                elif generation := future.result():
                    self._warn_of_cut(questions[asked[future]], generation)
                    yield asked[future], generation
        finally:
            stopped.set()
            pool.shutdown(wait=False)
        if failure is not None:
            raise failure

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
            generation = self._answer(question, stopped, emit)
            if len(question.prompts) > 1:
                emit(generation.text)
            self._warn_of_cut(question, generation)
            return generation

        return GenerationStream(work, document_ids=question.document_ids)

    def workload(
        self, prompts: Iterable[tuple[ContextPrompt, Method]], max_new_tokens: int
    ) -> Workload:
        """What asking prompts under methods will cost."""
        requests = characters = 0
        for prompt, method in prompts:
            around = _applied_here(method, self._served_method(method))
            prompt = around.rewrite(prompt)
            count = len(arrangements(prompt, around))
            requests += count
            characters += count * len(prompt.text)
        return Workload(
            requests=requests,
            prompt_tokens=characters // _CHARACTERS_PER_TOKEN,
            new_tokens=requests * max_new_tokens,
        )

    def _questions(
        self,
        prompts: Sequence[Prompt],
        method: MethodLike | None,
        method_options: Mapping[str, Any] | None,
        options: GenerationKwargs,
    ) -> list[_Question]:
        settings = checked_options(options, allowed=GenerationKwargs)
        check_options(settings)
        chosen, as_served = self.method, self._as_served
        if method is not None or method_options:
            chosen = self.checked_method("none" if method is None else method, method_options)
            as_served = False
        served_method = None if as_served else self._served_method(chosen)
        around = _applied_here(chosen, served_method)
        questions = []
        contexts = [around.rewrite(_as_prompt(prompt)) for prompt in prompts]
        seeds = settings.seeds(len(prompts))
        for example, (prompt, seed) in enumerate(zip(contexts, seeds, strict=True)):
            layout = stand_in(prompt).layout
            self._warn_of_control_tokens(prompt)
            check_documents(chosen, layout, settings, example, prompt=prompt)
            warn_of_number(around, len(prompt.documents))
            ordered = tuple(
                prompt.with_documents(prompt.documents[index] for index in order)
                for order in arrangements(prompt, around)
            )
            questions.append(
                _Question(
                    method=chosen,
                    served_method=served_method,
                    prompts=ordered,
                    options=settings,
                    seed=seed,
                    document_ids=tuple(document.id for document in ordered[0].documents),
                    applied=acts_on(chosen, layout),
                )
            )
        return questions

    def _warn_of_control_tokens(self, prompt: ContextPrompt) -> None:
        """Name what the server may take for a control token: it tokenises the text as a whole."""
        if self._offered is None and (token := _CONTROL_TOKEN.search(prompt.text)):
            warn_caller(
                EndpointWarning(
                    f"The prompt holds {token[0]!r}. Most servers read that as a control token, in "
                    "documents too, and who wrote it may end the user's turn. Remove it from what "
                    "others wrote, or ask a model whose text stays text: one that is loaded here, "
                    "or behind `rag-middle serve`."
                )
            )

    def _warn_of_cut(self, question: _Question, generation: Generation) -> None:
        """Say that the server counts fewer tokens than the prompt has words."""
        if self._send_documents != "text" or len(question.prompts) > 1:
            return
        words, counted = len(question.prompts[0].text.split()), generation.usage.prompt_tokens
        if 0 < counted < words:
            warn_caller(
                EndpointWarning(
                    f"{self._server.url} read {counted:,} tokens of a prompt of {words:,} words: "
                    "it has cut it without an error, as Ollama does beyond its context length. "
                    "Raise that (num_ctx, OLLAMA_CONTEXT_LENGTH), or send fewer documents. Answers "
                    "to cut prompts say nothing of positions. (A server that leaves out what it "
                    "had kept of earlier prompts looks the same.)"
                )
            )

    def _answer(
        self,
        question: _Question,
        stopped: threading.Event,
        emit: Callable[[str], None] | None = None,
    ) -> Generation:
        """One answer: of its only request, or of the one that the method chooses."""
        start = perf_counter()
        first: list[float] = []  # when the first piece came

        def emit_piece(piece: str) -> None:
            first[:] = first or [perf_counter() - start]
            if emit is not None:
                emit(piece)

        replies = []
        streamed = emit is not None and len(question.prompts) == 1
        for prompt in question.prompts:
            body = request_body(
                prompt,
                question.options,
                model=self.name,
                documents=self._send_documents,
                seed=question.seed,
                method=question.served_method,
                extra=self._extra,
            )
            reply = self._server.answer(body, stopped, emit_piece if streamed else None)
            # What a filter in front of the server withheld says nothing of documents.
            withheld = reply.finish_reason == "content_filter" and not reply.text
            if reply.finish_reason != "cancelled" and not withheld:
                check_served(
                    reply,
                    len(prompt.documents),
                    self._server.url,
                    sent=self._send_documents,
                    method=question.served_method,
                )
            replies.append(reply)
            if emit is not None and stopped.is_set():
                break  # a closed stream is what came until then
        seconds = perf_counter() - start
        prefill = first[0] if first else seconds
        chosen = _voted(question.method, replies)
        served = chosen.served or {}
        order = served.get("document_order") or range(len(question.document_ids))
        name = method_name(question.method)
        applied = question.applied
        if method_name(_applied_here(question.method, question.served_method)) == "none":
            # The server may have a method that it uses where none is named.
            if name == "none":
                name = served.get("method") or self.served_under or name
            applied |= name != method_name(question.method)
            applied &= served.get("applied") is not False
        return Generation(
            text=chosen.text,
            token_ids=(),
            finish_reason=chosen.finish_reason or "stop",
            stop=None,
            usage=Usage(
                prompt_tokens=sum(reply.usage.prompt_tokens for reply in replies),
                completion_tokens=sum(reply.usage.completion_tokens for reply in replies),
            ),
            timings=Timings(tokenize=0.0, wait=0.0, prefill=prefill, decode=seconds - prefill),
            method=name,
            applied=applied,
            documents=len(question.document_ids),
            document_ids=tuple(question.document_ids[index] for index in order),
            dropped_documents=(),
            seed=question.seed,
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


def _chosen_name(name: str | None, listed: Mapping[str, Any], url: str) -> str:
    if name:
        return name
    if len(listed) == 1:
        return next(iter(listed))
    names = f"has {', '.join(map(repr, sorted(listed)[:20]))}" if listed else "does not list any"
    raise ConfigError(f"Name the model that {url} shall use with model. It {names}.")


def _applied_here(method: Method, served_method: str | None) -> Method:
    """The method as far as it is not the server that applies it."""
    return method if served_method in (None, "none") else NoMethod()


def _name_alone(method: Method) -> str:
    """The name that a server is asked for a method by.

    Raises:
        WeightsNeededError: by its name alone it would have other parameters.
    """
    name = method_name(method)
    with suppress(MethodConfigError):
        if "profile:" not in name and resolve_method(name) == method:
            return name
    raise WeightsNeededError(
        f"A server is asked for a method by its name, and {name} has parameters of its own: start "
        "the server with it (`rag-middle serve --method ...`)."
    )


def _as_prompt(prompt: Prompt) -> ContextPrompt:
    if isinstance(prompt, ContextPrompt):
        return prompt
    if isinstance(prompt, str):
        return parse(prompt)
    raise PromptError(
        "A model behind an HTTP address takes a string or a ContextPrompt, got "
        f"{type(prompt).__name__}. Send chat messages with that server's own client."
    )
