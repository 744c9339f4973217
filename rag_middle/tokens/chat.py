"""Messages through a template to text, keeping track of where the documents stand.

The documents are taken out of their message and a private-use character is left in their place.
The template is rendered to text, and the text is split there. Another such character marks the
cuts inside message contents that keep control tokens inert (see ``text.TextEncoder``).

A template is the tokenizer's own (`render_chat`) or a function of the caller (`render_written`).
"""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from rag_middle.documents import (
    ContextPrompt,
    check_markers,
    gathered,
    has_documents,
    parse,
    unmark,
)
from rag_middle.errors import ChatTemplateError, PromptError
from rag_middle.tokens.text import TextEncoder, Tokenizer

__all__ = [
    "Conversation",
    "Message",
    "RenderedChat",
    "TemplateFunction",
    "has_chat_template",
    "render_chat",
    "render_written",
]

Message = Mapping[str, Any]
#: Writes messages as one text, in place of a chat template.
TemplateFunction = Callable[[Sequence[Message]], str]

_SYSTEM = frozenset({"system", "developer"})
_MODEL = frozenset({"assistant", "model"})  # as Gemma's template names it


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages, with documents in one of them.

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
        """Take the documents of the system messages at the start and of the last turn that has any.

        A turn ends where the model speaks. Documents of several messages are put together where the
        first one stands: each is there once for every message that holds it, so a document that a
        user sends again is one more and takes no other's place. Documents of earlier turns become
        plain text, and so do those in a string of the model: nobody retrieved what it said.

        A content is a string, with marked documents or without, or a `ContextPrompt`.

        Raises:
            MarkerError: the documents of the message do not stand together, and it is of this turn.
            PromptError: a message is not of the expected shape.

        Warns:
            UnreadMarkersWarning: of markers in a message, except the model's, that mark nothing.
        """
        if not messages:
            raise PromptError("There are no messages. Pass at least one user message.")
        contents = [_content(message, index) for index, message in enumerate(messages)]
        plain = [_plain(content) for content in contents]
        prompts = {index: _prompt_at(messages, index) for index in _with_documents(messages)}
        for index, prompt in prompts.items():
            plain[index] = prompt.prefix + prompt.suffix
        at = min(prompts, default=None)
        if at is not None:
            plain[at] = ""
        return cls(
            tuple({**m, "content": text} for m, text in zip(messages, plain, strict=True)),
            _joined(list(prompts.values())),
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


def _with_documents(messages: Sequence[Message]) -> list[int]:
    """0-based indices of the messages whose documents count, see `Conversation.of_messages`."""
    roles = [message["role"] for message in messages]
    start = next((index for index, role in enumerate(roles) if role not in _SYSTEM), len(roles))
    ends = [index for index, role in enumerate(roles) if role in _MODEL]
    holding = [index for index, message in enumerate(messages) if _holds_documents(message)]
    turns = {index: bisect(ends, index) for index in holding if index >= start}
    last = max(turns.values(), default=None)
    return [index for index in holding if index < start or turns[index] == last]


def _holds_documents(message: Message) -> bool:
    content = message.get("content")
    if isinstance(content, ContextPrompt):
        return bool(content.documents)
    return content is not None and message["role"] not in _MODEL and has_documents(content)


def _prompt_at(messages: Sequence[Message], at: int) -> ContextPrompt:
    """The content of a message as a prompt; raises `MarkerError` as `parse` does."""
    content = messages[at]["content"]
    if isinstance(content, ContextPrompt):
        return content
    # What was said in an earlier turn must not make later ones fail.
    answered = any(message["role"] in _MODEL for message in messages[at + 1 :])
    earlier = answered and messages[at]["role"] not in _SYSTEM
    return parse(content, groups="last" if earlier else "single")


def _joined(prompts: Sequence[ContextPrompt]) -> ContextPrompt:
    """The first prompt, with the documents of all."""
    if len(prompts) < 2:
        return prompts[0] if prompts else ContextPrompt()
    documents = gathered(document for prompt in prompts for document in prompt.documents)
    return ContextPrompt(prompts[0].prefix, documents, prompts[0].suffix)


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
    template = _ChatTemplate(tokenizer, encoder, conversation, template_options)
    joined, fenced = template.render(fenced=False), template.render(fenced=True)
    # A control token that content and template text form together ("<|" + "im_end|>") shows as one
    # more than where the two are kept apart.
    return joined if template.control_ids(joined) == template.control_ids(fenced) else fenced


def render_written(
    write: TemplateFunction, encoder: TextEncoder, conversation: Conversation
) -> RenderedChat:
    """What a caller's function makes of a conversation; only the function writes control tokens.

    A function may do anything with the contents (strip, upper-case, unescape or repeat them), so
    its own control tokens are counted where the contents are harmless, and no more are allowed.

    Raises:
        ChatTemplateError: the function fails, drops or repeats the documents, or passes on control
            tokens in a way that cannot be told from writing them.
    """
    template = _WrittenTemplate(write, encoder, conversation)
    own = template.control_ids(template.render_harmless())
    for render in (template.render_cut, template.render_fenced):
        rendered = render()
        if rendered is not None and template.control_ids(rendered) == own:
            return rendered
    raise ChatTemplateError(
        "A message holds control tokens of this tokenizer as text, and the template function "
        "changes messages so that they cannot be told from its own. Let it write contents as they "
        "are (stripping and formatting them is fine), without removing unusual characters."
    )


class _Template:
    """A conversation with sentinels in it, and what a template makes of that."""

    name = "chat template"

    def __init__(
        self, encoder: TextEncoder, conversation: Conversation, *other_texts: object
    ) -> None:
        strings = [conversation.prompt.text]
        _map_strings([conversation.messages, *other_texts], strings.append)
        characters = _absent_characters(4, *strings)
        self._documents, self._cut, self._opening, self._closing = characters
        self._encoder = encoder
        self._conversation = conversation

    def control_ids(self, rendered: RenderedChat) -> list[int]:
        """The control tokens of a rendered conversation, in order."""
        before = self._encoder.encode(rendered.before, continues=False)
        after = self._encoder.encode(rendered.after, continues=True)
        return self._encoder.control_ids(before + after)

    def _messages(
        self, change: Callable[[str], str], around: tuple[str, str] = ("", "")
    ) -> list[Message]:
        """The messages with all text changed and a sentinel in place of the documents.

        Args:
            change: of each text: contents, and what else the messages hold.
            around: written before and after each content.
        """
        messages: list[Message] = []
        for index, message in enumerate(self._conversation.messages):
            content = message.get("content")
            if index == self._conversation.at:
                prompt = self._conversation.prompt
                content = self._documents.join(map(change, (prompt.prefix, prompt.suffix)))
            elif content is not None:
                content = change(content)
            # The message's own keys and its role are names that the template knows.
            changed = {
                **{key: self._changed(item, change) for key, item in message.items()},
                "role": self._checked_role(message["role"]),
            }
            if content is not None:
                changed["content"] = content.join(around)
            messages.append(changed)
        return messages

    def _changed(self, value: Any, change: Callable[[str], str]) -> Any:
        return _map_strings(value, change, self._inert)

    def _parts(self, text: str) -> list[str]:
        """The text before and after the documents."""
        parts = text.split(self._documents)
        expected = 1 if self._conversation.at is None else 2
        if len(parts) != expected:
            what = "drops" if len(parts) < expected else "repeats"
            raise ChatTemplateError(
                f"The {self.name} {what} the message with the documents. Move them into the last "
                "user message, or use template='raw'."
            )
        return parts

    def _split(self, text: str) -> RenderedChat:
        return RenderedChat(*(tuple(part.split(self._cut)) for part in self._parts(text)))

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


class _WrittenTemplate(_Template):
    """A caller's function as a template."""

    name = "template function"

    def __init__(
        self, write: TemplateFunction, encoder: TextEncoder, conversation: Conversation
    ) -> None:
        super().__init__(encoder, conversation)
        self._write = write

    def render_harmless(self) -> RenderedChat:
        """With contents of the same shape that no function makes control tokens of."""
        return self._split(self._apply(self._messages(self._harmless)))

    def render_cut(self) -> RenderedChat:
        """With contents cut where they hold control tokens, and otherwise as they are."""
        return self._split(self._apply(self._messages(self._inert)))

    def render_fenced(self) -> RenderedChat | None:
        """With sentinels around contents, inert there whatever the function did to them.

        None where the function lost some of the sentinels.
        """
        around = (self._opening, self._closing)
        fenced: list[tuple[str, ...]] = []
        inside = False
        for part in self._parts(self._apply(self._messages(str, around))):
            pieces: list[str] = []
            for text in re.split(f"([{self._opening}{self._closing}])", part):
                if text in around:
                    if inside is (text == self._opening):
                        return None
                    inside = not inside
                else:
                    pieces += self._encoder.inert_pieces(text) if inside else [text]
            fenced.append(tuple(pieces))
        return None if inside else RenderedChat(*fenced)

    def _harmless(self, text: str) -> str:
        # Words stay: functions look for some.
        masked = re.sub(r"[^\w\s]", "x", text)
        if self._encoder.inert_pieces(masked) in ([], [masked]):
            return masked
        return re.sub(r"\S", "x", text)

    def _apply(self, messages: list[Message]) -> str:
        try:
            text: object = self._write(messages)
        except Exception as error:
            raise ChatTemplateError(f"The template function failed: {error!r}.") from error
        if not isinstance(text, str):
            raise ChatTemplateError(
                f"The template function must return the prompt as a string, got "
                f"{type(text).__name__}."
            )
        return text


class _ChatTemplate(_Template):
    """A tokenizer's chat template."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        encoder: TextEncoder,
        conversation: Conversation,
        options: Mapping[str, Any],
    ) -> None:
        template = str(getattr(tokenizer, "chat_template", ""))
        super().__init__(encoder, conversation, template, options)
        self._tokenizer = tokenizer
        self._options = options

    def render(self, *, fenced: bool) -> RenderedChat:
        """Render, cutting at both ends of every content too if ``fenced``."""
        around = (self._cut, self._cut) if fenced else ("", "")
        messages = self._messages(self._inert, around)
        if any(message["role"] == "system" for message in messages) and not self._takes_system():
            messages = _merged([_as_user(message) for message in messages])
        return self._split(self._apply_to_any(messages, _merged(messages)))

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
    if isinstance(content, str) and role not in _MODEL:
        check_markers(content)
    return content


def _plain(content: str | ContextPrompt | None) -> str | None:
    """A content with its documents as text."""
    if isinstance(content, ContextPrompt):
        return content.text
    return None if content is None else unmark(content)


def _map_strings(
    value: Any,
    change: Callable[[str], object],
    change_key: Callable[[str], object] | None = None,
) -> Any:
    """``value`` with every string in it changed, keys of mappings too (by `change_key`, if any)."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        of_key = change_key or change
        return {
            of_key(key) if isinstance(key, str) else key: _map_strings(item, change, change_key)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_map_strings(item, change, change_key) for item in value]
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
