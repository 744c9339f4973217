"""What vLLM's front end does in every engine: marked text is read, and models say their method.

A prompt is a string or chat messages, over HTTP or from Python. Markers around documents are made
for rag-middle; a model would read them as text. So prompts lose them before vLLM renders them,
which leaves the plain text that was marked. Requests that name a method have been read by then
(`rag_middle_vllm.documents.openai`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import PurePath
from types import ModuleType
from typing import Any

from rag_middle.documents import MarkedText
from rag_middle.errors import RagMiddleError
from rag_middle.markers import MARKER_KEY_VARIABLE
from rag_middle.tokens.conversation import MODEL_ROLES
from rag_middle_vllm.documents.admission import refusal
from rag_middle_vllm.hooks import hook
from rag_middle_vllm.options import DOCUMENTS, method_of, option_of


class MarkerReader:
    """Takes the markers off the texts of one prompt."""

    def __init__(self) -> None:
        self._has_documents = self._marked_elsewhere = False

    def plain(self, text: str, role: str = "user") -> str:
        """The text without the markers that count here."""
        try:
            marked = MarkedText(text)
        except RagMiddleError as error:  # this server's key is too short
            raise refusal(str(error)) from error
        self._has_documents |= marked.has_documents()
        # What the model wrote must not make later turns fail.
        self._marked_elsewhere |= role not in MODEL_ROLES and marked.marked_elsewhere
        return marked.plain()

    def check(self) -> None:
        """Make sure that the prompt does not hold another key's documents only.

        Raises:
            VLLMValidationError: it does; the model would read one text full of markers.
        """
        if self._marked_elsewhere and not self._has_documents:
            raise refusal(
                "The text seems to hold documents, marked with another key than this engine's: set "
                f"{MARKER_KEY_VARIABLE} to the same secret in the client and the server, or send "
                "plain text without markers."
            )


def _plain_messages(messages: Iterable[Any]) -> list[Any]:
    reader = MarkerReader()
    plain = [_plain_fields(message, reader, _role(message)) for message in messages]
    reader.check()
    return plain


def _role(message: Any) -> str:
    return str(message.get("role", "user")) if isinstance(message, Mapping) else "user"


def _plain_fields(value: Any, reader: MarkerReader, role: str) -> Any:
    """A message, or a part of one: a text, or a mapping with a ``content`` or a ``text``."""
    if isinstance(value, str):
        return reader.plain(value, role)
    if not isinstance(value, Mapping):
        return value
    fields = dict(value)
    for name in fields.keys() & {"content", "text"}:
        if isinstance(fields[name], list):
            fields[name] = [_plain_fields(part, reader, role) for part in fields[name]]
        elif isinstance(fields[name], str):
            fields[name] = reader.plain(fields[name], role)
    return fields


def _plain_prompt(prompt: Any) -> Any:
    """A prompt of vLLM's, which may have tokens, embeddings or an encoder's prompt instead."""
    is_text = isinstance(prompt, Mapping) and isinstance(prompt.get("prompt"), str)
    if not is_text or "prompt_token_ids" in prompt or "prompt_embeds" in prompt:
        return prompt
    reader = MarkerReader()
    plain = reader.plain(prompt["prompt"])
    reader.check()
    return {**prompt, "prompt": plain}


def _plain_params(params: Any) -> Any:
    """Parameters of vLLM's for a chat, without markers in the documents for its template.

    They are documents whatever marks them, so none is refused.
    """
    documents = params.chat_template_kwargs.get("documents")
    if not isinstance(documents, list):
        return params
    plain = [_plain_document(document) for document in documents]
    return replace(params, chat_template_kwargs={**params.chat_template_kwargs, "documents": plain})


def _plain_document(document: Any) -> Any:
    """A text, or a mapping ``{"title", "text"}``."""
    reader = MarkerReader()

    def plain(value: Any) -> Any:
        return reader.plain(value) if isinstance(value, str) else value

    if not isinstance(document, Mapping):
        return plain(document)
    return {name: plain(value) for name, value in document.items()}


def hook_texts(renderer: type[Any]) -> None:
    """Let a class `BaseRenderer` render marked text, strings and chats, as plain text.

    Raises:
        AttributeError: it has other functions; nothing has changed then.
    """

    def reading(plain: Mapping[str, Callable[[Any], Any]]) -> Callable[..., Any]:
        def wrapper(render: Callable[..., Any]) -> Callable[..., Any]:
            def read(self: Any, *args: Any, **kwargs: Any) -> Any:
                values = list(args)
                for at, (name, plain_value) in enumerate(plain.items()):
                    if name in kwargs:
                        kwargs[name] = plain_value(kwargs[name])
                    elif at < len(values):
                        values[at] = plain_value(values[at])
                return render(self, *values, **kwargs)

            return read

        return wrapper

    # The first parameters of vLLM's functions, in order.
    chats = reading(
        {
            "conversations": lambda chats: [_plain_messages(chat) for chat in chats],
            "chat_params": _plain_params,
        }
    )
    completions = reading({"prompts": lambda prompts: [_plain_prompt(one) for one in prompts]})
    hook(
        renderer,
        render_chat=chats,
        render_chat_async=chats,
        render_cmpl=completions,
        render_cmpl_async=completions,
    )


def hook_harmony(module: ModuleType) -> None:
    """The same for the messages of gpt-oss, which vLLM renders by a function of `module`'s.

    Raises:
        AttributeError: it has no such function.
    """

    def reading(render: Callable[..., Any]) -> Callable[..., Any]:
        def read(messages: Any) -> Any:
            reader = MarkerReader()
            for message in messages:
                for part in message.content:
                    if isinstance(getattr(part, "text", None), str):
                        part.text = reader.plain(part.text, message.author.role.value)
            reader.check()
            return render(messages)

        return read

    hook(module, render_for_completion=reading)


def hook_models(models: type[Any]) -> None:
    """Let a class `OpenAIServingModels` say in `/v1/models` what the engine was started with.

    Raises:
        AttributeError: it has other functions.
    """

    def describing(show: Callable[..., Any]) -> Callable[..., Any]:
        async def described(self: Any) -> Any:
            listed = await show(self)
            config = self.engine_client.vllm_config
            option = option_of(config, config.model_config)
            if option is not None:
                for card in listed.data:  # vLLM's cards, like OpenAI's, may have more fields
                    card.rag_middle = _served(option)
            return listed

        return described

    hook(models, show_available_models=describing)


def _served(option: Mapping[str, Any]) -> dict[str, Any]:
    """The methods of an engine, in the form of `rag-middle serve`."""
    if DOCUMENTS in option:
        return {"methods": ["none", *sorted(option[DOCUMENTS])], "default_method": "none"}
    name = option.get("source") or method_of(option).name
    kind, _, path = name.partition(":")
    if kind == "profile":  # clients need not know where it lies
        name = f"profile:{PurePath(path).stem}"
    return {"methods": [name], "default_method": name}
