"""Documents in requests to vLLM's OpenAI-compatible server.

A chat has them as marked text in its messages, or as ``documents``, vLLM's own field; a completion
as marked text. ``vllm_xargs: {"rag_middle": NAME}`` names the method. Marked text without a method
is read by the unmodified model, without the markers.
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rag_middle.conventions.documents import parsed_document
from rag_middle.documents import ContextPrompt, MarkedText
from rag_middle.errors import RagMiddleError
from rag_middle.tokens import TokenizedPrompt, encode
from rag_middle.tokens.conversation import MODEL_ROLES
from rag_middle_vllm.documents.admission import BOUNDS, METHOD, Admission, refusal
from rag_middle_vllm.documents.prompts import document_edges, plain_messages, without_developers
from rag_middle_vllm.frontend import MarkerReader
from rag_middle_vllm.hooks import hook


class _DocumentReader:
    """Makes requests with documents into tokens, for one renderer of vLLM's."""

    def __init__(self, renderer: Any) -> None:
        self.admission = Admission.of_engine(renderer.config)
        # A tokenizer of its own, and one thread: fast tokenizers must not be used by two at once.
        self._tokenizer = copy.deepcopy(renderer.get_tokenizer())
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rag-middle")

    @classmethod
    def of_renderer(cls, renderer: Any) -> _DocumentReader:
        reader: _DocumentReader | None = vars(renderer).get("_rag_middle_reader")
        if reader is None:
            reader = vars(renderer)["_rag_middle_reader"] = cls(renderer)
        return reader

    async def tokens(self, request: Any, prompt: Any, **options: Any) -> list[int]:
        """Token ids of a prompt; where a method is named, `request` carries the documents' bounds.

        Raises:
            VLLMValidationError: it cannot be read, or not under its method.
        """
        name = method_name(request)
        method = None if name is None else self.admission.method(name)

        def read() -> TokenizedPrompt:
            tokenized = encode(self._tokenizer, prompt, **options)
            return tokenized if method is None else method.arranged(tokenized)

        try:
            loop = asyncio.get_running_loop()
            tokenized = await loop.run_in_executor(self._thread, read)
        except RagMiddleError as error:
            raise refusal(str(error)) from error
        if method is not None:
            bounds = document_edges(tokenized)
            # Here as well as in the engine: an answer that is streamed has begun by then.
            self.admission.check_prompt(name, bounds, len(tokenized))
            request.vllm_xargs = {**request.vllm_xargs, BOUNDS: bounds}
        return list(tokenized.input_ids)


def method_name(request: Any) -> Any | None:
    """The method that a request names."""
    return (getattr(request, "vllm_xargs", None) or {}).get(METHOD)


def _forget_none(request: Any, methods: Mapping[str, Any]) -> None:
    """Let a request name the unmodified model as `/v1/models` does where there is a choice."""
    if methods and method_name(request) == "none":
        others = {key: value for key, value in request.vllm_xargs.items() if key != METHOD}
        request.vllm_xargs = others


def hook_renderer(renderer: type[Any]) -> None:
    """Let a class `OnlineRenderer` read documents."""
    hook(renderer, preprocess_chat=_reading_chats, preprocess_completion=_reading_completions)


def _reading_chats(preprocess: Callable[..., Any]) -> Callable[..., Any]:
    async def chat(self: Any, request: Any, messages: Any, *args: Any, **kwargs: Any) -> Any:
        methods = Admission.of_engine(self.renderer.config).methods
        _forget_none(request, methods)
        takes_tokens = hasattr(request, "kv_transfer_params")  # chats and responses
        is_named = method_name(request) is not None
        if is_named and not (takes_tokens and hasattr(request, "documents")):
            raise refusal("Documents are read in chats and completions, not in other requests.")
        if is_named or (methods and takes_tokens and _marked(messages)):
            ids = await _chat_tokens(self, request, messages, kwargs.get("tool_dicts"))
            # As vLLM is told that another server has rendered the messages already.
            request.kv_transfer_params = {
                **(request.kv_transfer_params or {}),
                "prompt_token_ids": ids,
            }
            messages = []
        return await preprocess(self, request, messages, *args, **kwargs)

    return chat


def _reading_completions(preprocess: Callable[..., Any]) -> Callable[..., Any]:
    # vLLM gives `prompt_input` by its name.
    async def completion(
        self: Any, request: Any, prompt_input: Any, *args: Any, **kwargs: Any
    ) -> Any:
        admission = Admission.of_engine(self.renderer.config)
        _forget_none(request, admission.methods)
        is_named = method_name(request) is not None
        texts = [prompt_input] if isinstance(prompt_input, str) else prompt_input
        are_texts = isinstance(texts, list) and all(isinstance(text, str) for text in texts)
        if is_named:
            admission.method(method_name(request))
            _refuse_options(request)
            if are_texts and len(texts) == 1:
                _refuse_unread(texts)
            elif not _are_tokens(prompt_input):
                raise refusal("A completion read by a method has one prompt: send them one by one.")
        if are_texts and admission.methods:
            # The whole prompt is the caller's, as it is in vLLM; only documents are inert.
            options = {"template": "raw", "allow_control_tokens": True}
            prompt_input = []
            for text in texts:
                if is_named or MarkedText(text).has_documents():
                    admission.check_characters(len(text))
                    reader = _DocumentReader.of_renderer(self.renderer)
                    text = await reader.tokens(request, text, **options)
                prompt_input.append(text)
        return await preprocess(self, request, prompt_input, *args, **kwargs)

    return completion


async def _chat_tokens(renderer: Any, request: Any, messages: Any, tools: Any) -> list[int]:
    _refuse_options(request)
    if renderer.chat_template is not None or getattr(request, "chat_template", None) is not None:
        raise refusal(
            "Documents are read with the tokenizer's own chat template: leave out chat_template."
        )
    try:
        plain = plain_messages(messages, renderer.renderer.config.model_config)
    except RagMiddleError as error:
        raise refusal(str(error)) from error
    documents = getattr(request, "documents", None)
    reader = _DocumentReader.of_renderer(renderer.renderer)
    if any(message["role"] == "developer" for message in plain):
        plain = without_developers(plain)
    written = json.dumps([plain, documents, tools], ensure_ascii=False, default=str)
    reader.admission.check_characters(len(written))
    if method_name(request) is not None and not documents:
        # What the model wrote must not make later turns fail.
        _refuse_unread([message["content"] for message in _said_to_model(plain)])
    if documents:
        plain = _with_documents(plain, documents)
    options = renderer.effective_chat_template_kwargs(request)
    of_template = options.pop("documents", None)  # the field's where there are some
    if (not documents and of_template) or (request.chat_template_kwargs or {}).get("documents"):
        raise refusal(
            "chat_template_kwargs must not hold documents here: the template would write them as "
            "text, and no method could tell where they are. Send them as the field 'documents' "
            "with a method, or as marked text."
        )
    if options.pop("continue_final_message", None):
        raise refusal("continue_final_message does not go with documents: leave it out.")
    add_generation_prompt = options.pop("add_generation_prompt", True)
    options = {name: value for name, value in options.items() if value is not None}
    if tools:
        options["tools"] = tools
    return await reader.tokens(
        request,
        plain,
        template="chat",
        add_generation_prompt=add_generation_prompt,
        template_options=options,
    )


def _with_documents(
    messages: list[dict[str, Any]], documents: Sequence[Mapping[str, str]]
) -> list[dict[str, Any]]:
    """The messages with documents before the text of the last one."""
    if _marked(_said_to_model(messages)):
        raise refusal("Documents are marked in the messages and listed in 'documents': give one.")
    read = []
    for index, document in enumerate(documents):
        if "text" not in document or set(document) - {"title", "text"}:
            raise refusal(
                f"Document {index} should have a 'text' and may have a 'title', nothing else; got "
                f"{sorted(document)}."
            )
        # As everywhere in rag-middle, marked text that a client lists is the text that was marked.
        read.append(parsed_document(document, f"Document {index}"))
    *earlier, last = messages
    if last["role"] != "user":
        raise refusal("With 'documents', the last message should be the user's question.")
    return [
        *earlier,
        {**last, "content": ContextPrompt(documents=read, suffix=last["content"])},
    ]


def _said_to_model(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [message for message in messages if message.get("role") not in MODEL_ROLES]


def _marked(messages: Any) -> bool:
    """Whether a message holds marked documents."""
    texts: list[object] = []
    for message in messages:
        content = message.get("content") if isinstance(message, Mapping) else None
        parts = content if isinstance(content, list) else [content]
        texts += [part.get("text") if isinstance(part, Mapping) else part for part in parts]
    return any(isinstance(text, str) and MarkedText(text).has_documents() for text in texts)


def _are_tokens(prompt: object) -> bool:
    return isinstance(prompt, list) and all(isinstance(token, int) for token in prompt)


def _refuse_unread(texts: Sequence[str]) -> None:
    """Raise where another key's documents are the only ones: the model would read their markers."""
    reader = MarkerReader()
    for text in texts:
        reader.plain(text)
    reader.check()


def _refuse_options(request: Any) -> None:
    """Raise where a request asks for what does not go with documents."""
    for name in ("echo", "truncate_prompt_tokens", "use_beam_search", "prompt_embeds", "suffix"):
        if getattr(request, name, None) not in (None, False):
            raise refusal(f"{name} does not go with documents: leave it out.")
