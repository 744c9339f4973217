"""A tokenizer's chat template as a function of messages."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from itertools import product
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rag_middle.plain_data import map_strings
from rag_middle.tokens.conversation import SYSTEM_ROLES, Message, message_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase as Tokenizer

Way = Callable[[Sequence[Message]], list[Message]]

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
_ASKED = [{"role": "user", "content": "?"}]
_CALL_ID = "probe1234"  # nine letters and digits, as Mistral's template wants them
_FUNCTION = {"name": "probe_of_tools", "arguments": PROBE_ARGUMENTS}
_CALLED: list[Message] = [
    *_ASKED,
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


class ChatTemplate:
    """A tokenizer's chat template as a function of messages and tools.

    Args:
        tokenizer: that has one.
        options: more arguments for it.
    """

    def __init__(self, tokenizer: Tokenizer, options: Mapping[str, Any]) -> None:
        self._tokenizer = tokenizer
        self._options = options
        #: Whatever may stand in its text beside messages.
        self.given = [tokenizer.chat_template, options]

    def __call__(self, messages: Sequence[Message], tools: Sequence[Message] = ()) -> str:
        options = {**self._options, "tools": list(tools)} if tools else self._options
        apply: Any = self._tokenizer.apply_chat_template  # typed for contents of text only
        return str(apply(messages, tokenize=False, **options))

    def ways(self, messages: Sequence[Message]) -> Iterator[Way]:
        """Ways of giving messages to a template: as they are, and what else some of them want.

        Without two messages of one role in a row; no developer, or no system message either; the
        arguments of calls as text.
        """
        starts_with_system = messages[0]["role"] in SYSTEM_ROLES
        tried: list[list[Message]] = []
        for roles, is_merged, has_text in (
            *product(({}, {"developer": "system"}), (False, True), (False, True)),
            # Instructions then begin the question.
            *product(({"developer": "user", "system": "user"},), (True,), (False, True)),
        ):
            way = partial(_given, roles=roles, is_merged=is_merged, has_text=has_text)
            if (given := way(messages)) not in tried and (
                starts_with_system or "system" not in roles
            ):
                tried.append(given)
                yield way

    @cached_property
    def words(self) -> frozenset[str]:
        """Words that the template knows: its names, and such strings."""
        sources: list[str] = []
        map_strings(
            [self._tokenizer.chat_template, self._options.get("chat_template")], sources.append
        )
        return _words(tuple(sources))

    @property
    def shows_tools(self) -> bool:
        """Whether it writes what tools there are."""
        try:
            return "probe_of_tools" in self(_ASKED, [PROBE_TOOL])
        except Exception:  # the template comes with the model
            return False

    def probe_call(self) -> str | None:
        """A call of `PROBE_TOOL` and its result as the template writes them, and what follows.

        None if it shows none.
        """
        for has_text in (False, True):
            called = _given(_CALLED, has_text=has_text)
            try:
                before, text = (self(messages, [PROBE_TOOL]) for messages in (_ASKED, called))
            except Exception:  # the template comes with the model
                continue
            # In such quotes Python writes a mapping, and no model.
            is_shown = "probe value" in text and "probe result" in text
            if is_shown and "'probe_key'" not in text:
                pairs = enumerate(zip(before, text, strict=False))
                return text[next((at for at, (a, b) in pairs if a != b), len(before)) :]
        return None


def as_given(messages: Sequence[Message]) -> list[Message]:
    """Messages as they are."""
    return [*messages]


def _given(
    messages: Sequence[Message],
    *,
    roles: Mapping[str, str] = MappingProxyType({}),
    is_merged: bool = False,
    has_text: bool = False,
) -> list[Message]:
    """Messages in one of the ways of `ChatTemplate.ways`; those with calls have a content."""
    given: list[Message] = []
    for message in messages:
        role, content = message["role"], message["content"]
        message = {**message, "role": roles.get(role, role)}
        if message.get("tool_calls"):
            message["content"] = content or ""
            if has_text:
                message["tool_calls"] = [_with_text(call) for call in message["tool_calls"]]
        last = given[-1] if given and is_merged else {}
        is_plain = {"role", "content"} == message.keys() == last.keys()
        if is_plain and last["role"] == message["role"]:
            texts = [text for text in (last["content"], content) if text is not None]
            given[-1] = message_of(message["role"], "\n\n".join(texts))
        else:
            given.append(message)
    return given


def _with_text(call: Any) -> Any:
    """A call with its arguments as text."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or "arguments" not in function:
        return call
    text = json.dumps(function["arguments"], ensure_ascii=False)
    return {**call, "function": {**function, "arguments": text}}


@lru_cache(maxsize=16)
def _words(sources: tuple[str, ...]) -> frozenset[str]:
    """Names in Jinja templates, and strings that could be some."""
    from jinja2 import Environment, TemplateSyntaxError

    words = set()
    for source in sources:
        try:
            tokens = list(Environment().lexer.tokenize(source))
        except TemplateSyntaxError:  # refused when it is rendered
            continue
        words |= {token.value for token in tokens if token.type == "name"}
        words |= {t.value for t in tokens if t.type == "string" and t.value.isidentifier()}
    return frozenset(words)
