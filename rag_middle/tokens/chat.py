"""Messages through a tokenizer's chat template, keeping track of where the documents stand.

The documents are taken out of their message and a private-use character is left in their place.
The template is rendered to text, and the text is split there. Another such character marks the
cuts inside message contents that keep control tokens inert (see ``text.TextEncoder``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from rag_middle.documents import ContextPrompt, has_markers, parse, unmark
from rag_middle.errors import ChatTemplateError, PromptError
from rag_middle.tokens.text import TextEncoder, Tokenizer

__all__ = [
    "Conversation",
    "Message",
    "RenderedChat",
    "content_prompt",
    "has_chat_template",
    "last_with_documents",
    "render_chat",
]

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages, one of which may hold documents.

    Attributes:
        messages: ``{"role", "content"}`` and whatever else the template reads; without markers.
        prompt: the content of message ``at``, with its documents.
        at: 0-based index of that message, empty in ``messages``; None where there are no documents.
    """

    messages: tuple[Message, ...]
    prompt: ContextPrompt = field(default_factory=ContextPrompt)
    at: int | None = None

    @classmethod
    def of_prompt(cls, prompt: ContextPrompt) -> Conversation:
        """A conversation of one user message."""
        if not prompt.documents:
            return cls((_message("user", prompt.text),))
        return cls((_message("user", ""),), prompt, 0)

    @classmethod
    def of_messages(cls, messages: Sequence[Message]) -> Conversation:
        """Take the documents from the last message that has any.

        A content is a string, with markers or without, or a `ContextPrompt`. Documents of earlier
        messages become plain text.

        Raises:
            MarkerError: markers of a message are unbalanced, nested, stray or do not stand
                together.
            PromptError: a message is not of the expected shape.
        """
        if not messages:
            raise PromptError("There are no messages. Pass at least one user message.")
        contents = [_content(message, index) for index, message in enumerate(messages)]
        at = last_with_documents(messages)
        prompt = ContextPrompt() if at is None else content_prompt(contents[at] or "")
        plain = [_plain(content) for content in contents]
        if at is not None:
            plain[at] = ""
        return cls(
            tuple({**m, "content": text} for m, text in zip(messages, plain, strict=True)),
            prompt,
            at,
        )

    def with_system(self, system: str) -> Conversation:
        """The conversation after a system message.

        Raises:
            PromptError: it already starts with one.
        """
        if self.messages and self.messages[0]["role"] == "system":
            raise PromptError(
                "The messages start with a system message and system= was given too. Pass one."
            )
        messages = (_message("system", system), *self.messages)
        return Conversation(messages, self.prompt, None if self.at is None else self.at + 1)


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """A rendered conversation, in pieces of text to tokenise one by one.

    Attributes:
        before: the text before the documents; all of it where there are none.
        after: the text after the documents.
    """

    before: tuple[str, ...]
    after: tuple[str, ...] = ()


def last_with_documents(messages: Sequence[Message]) -> int | None:
    """0-based index of the message whose documents count: the last one that has any."""
    for index in range(len(messages) - 1, -1, -1):
        content = messages[index].get("content")
        if isinstance(content, ContextPrompt) and content.documents:
            return index
        if isinstance(content, str) and has_markers(content):
            return index
    return None


def content_prompt(content: str | ContextPrompt) -> ContextPrompt:
    """A message's content as a prompt; raises `MarkerError` as `parse` does."""
    return parse(content) if isinstance(content, str) else content


def has_chat_template(tokenizer: Tokenizer) -> bool:
    """Whether the tokenizer brings a chat template."""
    return bool(getattr(tokenizer, "chat_template", None))


def render_chat(
    tokenizer: Tokenizer,
    encoder: TextEncoder,
    conversation: Conversation,
    **template_options: Any,
) -> RenderedChat:
    """Render a conversation so that only the template writes control tokens.

    Args:
        tokenizer: one with a chat template.
        encoder: knows which text must be cut to stay inert.
        conversation: messages and documents.
        template_options: for ``tokenizer.apply_chat_template``.

    Raises:
        ChatTemplateError: there is no template, it refuses the messages, or it drops or repeats
            the documents.
    """
    if not has_chat_template(tokenizer):
        raise ChatTemplateError(
            "The tokenizer has no chat template. Set tokenizer.chat_template, load the "
            "instruction-tuned model's tokenizer, or encode a single prompt with template='raw'."
        )
    renderer = _Renderer(tokenizer, encoder, conversation, template_options)
    joined, fenced = renderer.render(fenced=False), renderer.render(fenced=True)
    # A control token that content and template text form together ("<|" + "im_end|>") shows as one
    # more than where the two are kept apart.
    return joined if renderer.control_ids(joined) == renderer.control_ids(fenced) else fenced


class _Renderer:
    def __init__(
        self,
        tokenizer: Tokenizer,
        encoder: TextEncoder,
        conversation: Conversation,
        options: Mapping[str, Any],
    ) -> None:
        strings = [conversation.prompt.text, str(getattr(tokenizer, "chat_template", ""))]
        _map_strings([conversation.messages, options], strings.append)
        self._documents, self._cut = _absent_characters(2, *strings)
        self._tokenizer = tokenizer
        self._encoder = encoder
        self._options = options
        self._expected_parts = 1 if conversation.at is None else 2
        self._messages = self._protected(conversation)

    def render(self, *, fenced: bool) -> RenderedChat:
        """Render, cutting at both ends of every content too if ``fenced``."""
        messages = [self._fenced(message) if fenced else message for message in self._messages]
        if any(message["role"] == "system" for message in messages) and not self._takes_system():
            messages = _merged([_as_user(message) for message in messages])
        text = self._apply_to_any(messages, _merged(messages))
        parts = [tuple(part.split(self._cut)) for part in text.split(self._documents)]
        if len(parts) != self._expected_parts:
            what = "drops" if len(parts) < self._expected_parts else "repeats"
            raise ChatTemplateError(
                f"The chat template {what} the message with the documents. Move them into the last "
                "user message, or use template='raw'."
            )
        return RenderedChat(*parts)

    def control_ids(self, rendered: RenderedChat) -> list[int]:
        before = self._encoder.encode(rendered.before, continues=False)
        after = self._encoder.encode(rendered.after, continues=True)
        return self._encoder.control_ids(before + after)

    def _protected(self, conversation: Conversation) -> list[Message]:
        """The messages with control tokens cut and a sentinel in place of the documents."""
        messages: list[Message] = [
            {
                # The message's own keys and its role are names that the template knows.
                **{key: _map_strings(item, self._inert) for key, item in message.items()},
                "role": self._checked_role(message["role"]),
            }
            for message in conversation.messages
        ]
        if conversation.at is not None:
            ends = (conversation.prompt.prefix, conversation.prompt.suffix)
            content = self._documents.join(map(self._inert, ends))
            messages[conversation.at] = {**messages[conversation.at], "content": content}
        return messages

    def _fenced(self, message: Message) -> Message:
        if message.get("content") is None:
            return message
        return {**message, "content": self._cut + message["content"] + self._cut}

    def _checked_role(self, role: str) -> str:
        # A plain word may be a control token of its own where a template is written so.
        if not role.isidentifier() and self._encoder.inert_pieces(role) != [role]:
            raise PromptError(
                f"The role {role!r} holds a control token of this tokenizer. Use one that the chat "
                "template knows, such as 'user'."
            )
        return role

    def _inert(self, text: str) -> str:
        return self._cut.join(self._encoder.inert_pieces(text))

    def _takes_system(self) -> bool:
        """Whether a system message is rendered, rather than refused or left out."""
        try:
            text = self._apply([_message("system", self._cut), _message("user", "?")])
        except ChatTemplateError:
            return False
        return self._cut in text

    def _apply_to_any(self, messages: list[Message], alternative: list[Message]) -> str:
        """Render; where the template insists on alternating roles, render ``alternative``."""
        try:
            return self._apply(messages)
        except ChatTemplateError:
            if alternative == messages:
                raise
            return self._apply(alternative)

    def _apply(self, messages: list[Message]) -> str:
        from jinja2 import TemplateError

        try:
            rendered = self._tokenizer.apply_chat_template(
                messages, tokenize=False, **self._options
            )
        except TemplateError as error:
            raise ChatTemplateError(
                f"The chat template refuses the messages: {error}. Roles given: "
                f"{[message['role'] for message in messages]}."
            ) from error
        return str(rendered)


def _merged(messages: Sequence[Message]) -> list[Message]:
    """Join neighbouring messages of one role, for templates that want roles to alternate."""
    merged: list[Message] = []
    for message in messages:
        previous = merged[-1] if merged else {}
        plain = {"role", "content"} == message.keys() == previous.keys()
        if plain and previous["role"] == message["role"]:
            joined = f"{previous['content']}\n\n{message['content']}"
            merged[-1] = _message(message["role"], joined)
        else:
            merged.append(message)
    return merged


def _as_user(message: Message) -> Message:
    return {**message, "role": "user"} if message["role"] == "system" else message


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def _content(message: Message, index: int) -> str | ContextPrompt | None:
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or not isinstance(content, str | ContextPrompt | None):
        raise PromptError(
            f"Message {index} needs a role and a content: strings, or a ContextPrompt as content; "
            f"got role={role!r} and content of type {type(content).__name__}. Join content blocks "
            "into one string."
        )
    return content


def _plain(content: str | ContextPrompt | None) -> str | None:
    """A content with its documents as text."""
    if isinstance(content, ContextPrompt):
        return content.text
    return None if content is None else unmark(content)


def _map_strings(value: Any, change: Callable[[str], object]) -> Any:
    """``value`` with every string in it changed, keys of mappings too."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {
            _map_strings(key, change) if isinstance(key, str) else key: _map_strings(item, change)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_map_strings(item, change) for item in value]
    return value


def _absent_characters(count: int, *texts: str) -> list[str]:
    """Private-use characters that occur in none of the texts."""
    taken = set().union(*texts)
    # The basic plane's area: transformers keeps sentinels of its own at U+F0000 and U+F0001.
    area = map(chr, range(0xE000, 0xF900))
    free = list(islice((character for character in area if character not in taken), count))
    if len(free) < count:
        raise PromptError("The messages use every private-use character. Remove some of them.")
    return free
