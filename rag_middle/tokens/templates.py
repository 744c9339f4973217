"""A tokenizer's chat template as a function of messages."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from rag_middle.errors import ChatTemplateError
from rag_middle.plain_data import map_strings
from rag_middle.tokens.conversation import Message, message_of
from rag_middle.wording import shortened

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase as Tokenizer

#: A tool and a call of it, of whose words no template writes any by itself.
PROBE_ARGUMENTS = {"probe_key": "probe value"}
PROBE_TOOL = {
    "type": "function",
    "function": {
        "name": "probe_of_tools",
        "description": "A probe.",
        "parameters": {
            "type": "object",
            "properties": {"probe_key": {"type": "string", "description": "A probe."}},
            "required": ["probe_key"],
        },
    },
}
_PROBE = "\uf8ff"  # a text that no template writes by itself
_ASKED = [message_of("user", "?")]
_CALL_ID = "probe1234"  # nine letters and digits, as Mistral's template wants them
_FUNCTION = {"name": "probe_of_tools", "arguments": PROBE_ARGUMENTS}
_CALLED: list[Message] = [
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": _CALL_ID, "type": "function", "function": _FUNCTION}],
    },
    {
        "role": "tool",
        "name": "probe_of_tools",
        "tool_call_id": _CALL_ID,
        "content": "probe result",
    },
]


def has_chat_template(tokenizer: Tokenizer) -> bool:
    """Whether the tokenizer brings a chat template."""
    return bool(getattr(tokenizer, "chat_template", None))


def reads_option(tokenizer: Tokenizer, option: str) -> bool:
    """Whether the tokenizer's chat template names an option, such as ``enable_thinking``."""
    return option in re.findall(r"\w+", str(tokenizer.chat_template))


class ChatTemplate:
    """A tokenizer's chat template as a function."""

    def __init__(self, tokenizer: Tokenizer, options: Mapping[str, Any]) -> None:
        self._tokenizer = tokenizer
        self._options = options
        #: Whatever may stand in its text beside messages, and its sources as text.
        self.given = [tokenizer.chat_template, options]
        self.sources: list[str] = []
        templates = [tokenizer.chat_template, options.get("chat_template")]
        map_strings(templates, self.sources.append)

    def __call__(self, messages: Sequence[Message], tools: Sequence[Message] = ()) -> str:
        if any(message.get("tool_calls") for message in messages):
            as_text, _ = self._written_call or (False, "")
            messages = _with_calls(messages, as_text)
        roles = {message["role"] for message in messages}
        if "developer" in roles and not self._takes_developer:
            messages = [_with_role(message, "developer", "system") for message in messages]
            roles.add("system")
        if "system" in roles and not self._takes_system:
            messages = _merged([_with_role(message, "system", "user") for message in messages])
        try:
            return self._apply(messages, tools)
        except ChatTemplateError:
            # Templates that insist on alternating roles.
            alternative = _merged(messages)
            if alternative == messages:
                raise
            return self._apply(alternative, tools)

    def check_tools(self, messages: Sequence[Message]) -> None:
        """Make sure that the template shows tools, and calls and their results if there are any.

        Raises:
            ChatTemplateError: it does not.
        """
        if not self.shows_tools:
            raise ChatTemplateError(
                "The chat template does not show tools, so the model would not know of them. Use a "
                "model that was trained to call tools, or set a template that renders tools: "
                "tokenizer.chat_template."
            )
        is_called = any(message.get("tool_calls") for message in messages)
        if not is_called and all(message["role"] != "tool" for message in messages):
            return
        if self.probe_call() is None:
            raise ChatTemplateError(
                "The chat template shows tools, but not their calls and results, which these "
                "messages hold. Leave out tools=, and tell results as messages of the user."
            )

    @property
    def shows_tools(self) -> bool:
        """Whether it writes what tools there are."""
        try:
            return "probe_of_tools" in self._apply(_ASKED, [PROBE_TOOL])
        except ChatTemplateError:
            return False

    def probe_call(self) -> str | None:
        """A call of `PROBE_TOOL` and its result as the template writes them, and what follows.

        None if it shows none.
        """
        return self._written_call and self._written_call[1]

    @cached_property
    def _written_call(self) -> tuple[bool, str] | None:
        """Whether arguments are taken as text, and a call with its result as the template writes
        them; None if it shows no calls."""
        for as_text in (False, True):
            try:
                before = self._apply(_ASKED, [PROBE_TOOL])
                text = self._apply([*_ASKED, *_with_calls(_CALLED, as_text)], [PROBE_TOOL])
            except ChatTemplateError:
                continue
            # In such quotes Python writes a mapping, and no model.
            is_shown = "probe value" in text and "probe result" in text
            if is_shown and "'probe_key'" not in text:
                pairs = enumerate(zip(before, text, strict=False))
                return as_text, text[next((i for i, (a, b) in pairs if a != b), len(before)) :]
        return None

    @cached_property
    def _takes_developer(self) -> bool:
        return self._takes_first("developer")

    @cached_property
    def _takes_system(self) -> bool:
        return self._takes_first("system")

    def _takes_first(self, role: str) -> bool:
        """Whether a first message of this role is rendered, rather than refused or left out."""
        try:
            text = self._apply([message_of(role, _PROBE), *_ASKED])
        except ChatTemplateError:
            return False
        return _PROBE in text

    def _apply(self, messages: Sequence[Message], tools: Sequence[Message] = ()) -> str:
        from jinja2 import TemplateError

        options = {**self._options, "tools": list(tools)} if tools else self._options
        try:
            apply: Any = self._tokenizer.apply_chat_template  # typed for contents of text only
            rendered = apply(messages, tokenize=False, **options)
        # Filters raise what Python's functions do.
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
            if isinstance(error, TypeError) and not tools:
                raise  # of an option
            # Not all of its words: transformers adds the whole prompt to some of its own.
            roles = [shortened(message["role"], 30) for message in messages]
            raise ChatTemplateError(
                f"The chat template refuses the messages: {shortened(str(error), 200)}. Roles "
                f"given: {roles}."
            ) from error
        return str(rendered)


def _with_calls(messages: Sequence[Message], as_text: bool) -> list[Message]:
    """Messages whose calls are as a template takes them, with a content beside them."""
    converted = []
    for message in messages:
        if message.get("tool_calls"):
            message = {**message, "content": message.get("content") or ""}
            if as_text:
                message["tool_calls"] = [
                    {**call, "function": {**call["function"], "arguments": text}}
                    for call in message["tool_calls"]
                    for text in [json.dumps(call["function"]["arguments"], ensure_ascii=False)]
                ]
        converted.append(message)
    return converted


def _merged(messages: Sequence[Message]) -> list[Message]:
    """Join neighbouring messages of one role, for templates that want roles to alternate."""
    merged: list[Message] = []
    for message in messages:
        previous = merged[-1] if merged else {}
        plain = {"role", "content"} == message.keys() == previous.keys()
        if plain and previous["role"] == message["role"]:
            texts = [text for text in (previous["content"], message["content"]) if text is not None]
            merged[-1] = message_of(message["role"], "\n\n".join(texts))
        else:
            merged.append(message)
    return merged


def _with_role(message: Message, role: str, substitute: str) -> Message:
    return {**message, "role": substitute} if message["role"] == role else message


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
