"""A tokenizer's chat template as a function of messages."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any

from rag_middle.errors import ChatTemplateError
from rag_middle.plain_data import map_strings
from rag_middle.tokens.conversation import Message, message_of
from rag_middle.tokens.text import Tokenizer

__all__ = ["ChatTemplate", "has_chat_template", "vocabulary"]

_PROBE = "\uf8ff"  # a text that no template writes by itself


def has_chat_template(tokenizer: Tokenizer) -> bool:
    """Whether the tokenizer brings a chat template."""
    return bool(getattr(tokenizer, "chat_template", None))


class ChatTemplate:
    """A tokenizer's chat template as a function."""

    def __init__(self, tokenizer: Tokenizer, options: Mapping[str, Any]) -> None:
        self._tokenizer = tokenizer
        self._options = options
        self.sources: list[str] = []
        templates = [tokenizer.chat_template, options.get("chat_template")]
        map_strings(templates, self.sources.append)

    def __call__(self, messages: Sequence[Message]) -> str:
        if any(message["role"] == "system" for message in messages) and not self._takes_system:
            messages = _merged([_as_user(message) for message in messages])
        try:
            return self._apply(messages)
        except ChatTemplateError:
            # Templates that insist on alternating roles.
            alternative = _merged(messages)
            if alternative == messages:
                raise
            return self._apply(alternative)

    @cached_property
    def _takes_system(self) -> bool:
        """Whether a system message is rendered, rather than refused or left out."""
        try:
            text = self._apply([message_of("system", _PROBE), message_of("user", "?")])
        except ChatTemplateError:
            return False
        return _PROBE in text

    def _apply(self, messages: Sequence[Message]) -> str:
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
            merged[-1] = message_of(message["role"], joined)
        else:
            merged.append(message)
    return merged


def _as_user(message: Message) -> Message:
    return {**message, "role": "user"} if message["role"] == "system" else message


@lru_cache(maxsize=16)
def vocabulary(sources: tuple[str, ...]) -> tuple[frozenset[str], str]:
    """Words that Jinja templates know, and a pattern of the strings in them, the longest first."""
    from jinja2 import Environment, TemplateSyntaxError

    names, phrases = set(), set()
    for source in sources:
        try:
            tokens = list(Environment().lexer.tokenize(source))
        except TemplateSyntaxError:  # refused when it is rendered
            continue
        names |= {token.value for token in tokens if token.type == "name"}
        phrases |= {token.value for token in tokens if token.type == "string"}
    names |= {phrase for phrase in phrases if phrase.isidentifier()}
    longest = sorted(filter(str.strip, phrases), key=len, reverse=True)
    return frozenset(names), "|".join(map(re.escape, longest)) or "(?!)"
