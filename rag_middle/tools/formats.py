"""How families of models write tool calls: a table, chosen by what the chat template holds.

A template tells its model how to write a call, so the words it writes tell the family. Sources:
the chat templates that the models' makers publish with their weights. The table serves tokenizers
without a template of responses, which `tokenizer.parse_response` reads.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import isfinite
from typing import Any

from rag_middle.plain_data import levels_of, map_strings, parse_json, whole_characters
from rag_middle.thinking import THINKING, thinking_of
from rag_middle.tools.definitions import InvalidToolCall, ToolCall, parameters_of


def _finite(text: str) -> float:
    if isfinite(number := float(text)):
        return number
    raise ValueError(f"{text} is no number of JSON")


#: JSON as it is defined: without NaN and infinities, which nobody can send on.
_STRICT: dict[str, Any] = {"parse_constant": _finite, "parse_float": _finite}
_DECODER = json.JSONDecoder(**_STRICT)
#: Of arguments: far more than tools have, and few enough for whoever copies or prints them.
_MAX_DEPTH = 64
#: Stands for the JSON of the arguments in a part of a call; no name holds braces.
ARGUMENTS = "{arguments}"

Tools = Sequence[Mapping[str, Any]]
Piece = str | ToolCall | InvalidToolCall


@dataclass(frozen=True, slots=True)
class ToolMessage:
    """An answer, read.

    Attributes:
        content: what is no call.
        calls: in order.
        invalid: what begins like a call and is none.
    """

    content: str
    calls: tuple[ToolCall, ...] = ()
    invalid: tuple[InvalidToolCall, ...] = ()


@dataclass(frozen=True)
class AnswerText:
    """What a model wrote, and which of it are control tokens.

    Attributes:
        text: of the answer.
        tokens: strings that are single tokens of this tokenizer. The same characters in ordinary
            tokens, as in a quotation, are text. Other strings are known by their characters only.
        places: offsets in the text where such tokens stand, with their strings.
        thinking: True if the prompt ended within the model's thinking.
    """

    text: str
    tokens: frozenset[str] = frozenset()
    places: Mapping[int, str] = field(default_factory=dict)
    thinking: bool = False

    def find(self, marker: str, start: int = 0) -> int:
        """The offset of the first `marker` at or after `start`; -1 if there is none."""
        if marker not in self.tokens:
            return self.text.find(marker, start)
        offsets = self._offsets.get(marker, [])
        for index in range(bisect_left(offsets, start), len(offsets)):
            if self.text.startswith(marker, offsets[index]):
                return offsets[index]
        return -1

    @cached_property
    def _offsets(self) -> dict[str, list[int]]:
        """Of each token, in order: an answer of nothing but markers is searched at every one."""
        offsets: dict[str, list[int]] = {}
        for at, token in sorted(self.places.items()):
            offsets.setdefault(token, []).append(at)
        return offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """A family's way to write tool calls.

    Attributes:
        name: of the family, for messages.
        signs: strings that a chat template of the family holds, all of them.
        openers: strings that begin calls, wherever they stand outside of calls.
        markers: the strings that may be control tokens.
        call: a call with ``{name}`` and ``{arguments}``; empty where calls cannot be forced.
        head: what stands between an opener and JSON, with the name if that stands there.
        tail: what may end a call, after JSON.
        whole: a string that begins a call without an opener, at the start of an answer only.
        read: the pieces of an answer from an offset on, text and calls, where they are no JSON.
    """

    name: str
    signs: tuple[str, ...]
    openers: tuple[str, ...]
    markers: tuple[str, ...]
    call: str = ""
    head: str = ""
    tail: str = ""
    whole: str = ""
    read: Callable[[AnswerText, int, Tools], Iterator[Piece]] | None = None

    def call_start(self, answer: AnswerText) -> int:
        """Where in a growing answer a call may begin; its length if nowhere."""
        text, begin = answer.text, self._begin(answer)
        if self.whole and text[begin:].lstrip()[:1] in ("", self.whole):
            return begin
        starts = [answer.find(opener, begin) for opener in self.openers]
        starts += [half_way(text, it) for it in self.openers if it not in answer.tokens]
        return min((start for start in starts if start >= 0), default=len(text))

    def message(self, answer: AnswerText, tools: Tools) -> ToolMessage:
        """Read a whole answer."""
        return self._message(answer, self._begin(answer), tools)

    def parts(self, name: str) -> list[str]:
        """A call of a tool in parts: text, markers and `ARGUMENTS`."""
        cuts = "|".join(map(re.escape, (ARGUMENTS, *self.markers)))
        quoted = json.dumps(name, ensure_ascii=False)
        return [
            part.replace('"{name}"', quoted).replace("{name}", name)
            for part in re.split(f"({cuts})", self.call)
            if part
        ]

    def forced_start(self, text: str) -> int:
        """As `call_start`, for an answer that is one whole forced call or none."""
        # Decoders may write spaces between tokens.
        opening, written = ("".join(it.split()) for it in (self.call.partition("{name}")[0], text))
        return 0 if written.startswith(opening) or opening.startswith(written) else len(text)

    def forced_message(self, text: str, tools: Tools) -> ToolMessage:
        """Read an answer that is one whole forced call of one of the tools, or has no call.

        Nothing before the call has to be searched for it, and its arguments may quote anything.
        """
        names = [tool["function"]["name"] for tool in tools]
        if self.forced_start(text) > 0:
            return ToolMessage(text)
        message = self._message(AnswerText(text), 0, tools)
        is_call = all(call.name in names for call in message.calls)
        return message if is_call else ToolMessage(text)

    def _message(self, answer: AnswerText, begin: int, tools: Tools) -> ToolMessage:
        read = self._read_json if self.read is None else self.read
        pieces = list(read(answer, begin, tools))
        texts = [piece for piece in pieces if isinstance(piece, str)]
        if len(texts) < len(pieces):  # what separates calls is no text
            texts = [texts[0], *(piece for piece in texts[1:] if piece.strip())]
        return ToolMessage(
            answer.text[:begin] + "".join(texts),
            tuple(piece for piece in pieces if isinstance(piece, ToolCall)),
            tuple(piece for piece in pieces if isinstance(piece, InvalidToolCall)),
        )

    def _begin(self, answer: AnswerText) -> int:
        """Where the answer begins after thinking, which may mention calls.

        Thinking ends at the first `</think>`; cut before that, all of the text is thinking. Where
        nothing says that the model thinks, `</think>` has to be a token, which no text quotes, and
        to stand before all calls.
        """
        stated, end = thinking_of(answer.text, begun=answer.thinking, find=answer.find)
        if end < 0:
            return len(answer.text) if stated else 0
        if not stated:
            calls = [answer.find(opener) for opener in self.openers]
            is_whole = self.whole and answer.text.lstrip().startswith(self.whole)
            if is_whole or any(0 <= call < end for call in calls):
                return 0
            if THINKING[1] not in answer.tokens:
                return 0
        return end

    def _opening(self, answer: AnswerText, at: int, openers: Sequence[str]) -> tuple[int, int]:
        """Where the next call and its content begin; the end of the text twice if there is none."""
        end = len(answer.text)
        starts = [(answer.find(opener, at), len(opener)) for opener in openers]
        opened, length = min((it for it in starts if it[0] >= 0), default=(end, 0))
        return opened, opened + length

    def _read_json(self, answer: AnswerText, start: int, tools: Tools) -> Iterator[Piece]:
        """Calls whose arguments are JSON, read to its own end: strings in it may hold markers."""
        text, at = answer.text, start
        opened, begin = self._opening(answer, at, self.openers)
        if self.whole and text[start:].lstrip().startswith(self.whole):
            opened = begin = start if _is_whole_call(text[start:].lstrip(), tools) else len(text)
        while opened < len(text):
            yield text[at:opened]
            head = re.compile(self.head + r"\s*").match(text, begin)
            assert head is not None  # nothing in it has to be there
            name = (head.groupdict().get("name") or "").strip()
            try:
                value, end = _DECODER.raw_decode(text, head.end())
            except (ValueError, RecursionError) as error:
                # Nobody knows where its strings end, so only a token begins the next call.
                at, _ = self._opening(answer, head.end(), [*answer.tokens & {*self.openers}])
                written = text[begin:at].strip()
                stated = re.search(r'"name"\s*:\s*"([^"]+)"', written)
                wrong = f"The call is no JSON: {error}"
                yield InvalidToolCall(
                    text=written, error=wrong, name=name or (stated and stated[1])
                )
            else:
                written = text[begin:end].strip()
                if name:
                    yield _named(name, value, written)
                else:
                    values = value if isinstance(value, list) else [value]
                    yield from (_call(item, written) for item in values)
                tail = re.compile(self.tail).match(text, end)
                at = tail.end() if tail else end
            if self.whole and text.startswith(self.whole, at):
                opened = begin = at
            else:
                opened, begin = self._opening(answer, at, self.openers)
        yield text[at:]


def format_of(template: str) -> ToolFormat | None:
    """The first format whose signs a chat template holds; None if it is of no known family."""
    for known in FORMATS:
        if all(sign in template for sign in known.signs):
            return known
    return None


def half_way(text: str, opener: str) -> int:
    """Where `text` ends with a part of `opener`, from its beginning on; -1 if it does not."""
    for length in range(min(len(opener) - 1, len(text)), 0, -1):
        if text.endswith(opener[:length]):
            return len(text) - length
    return -1


def _is_whole_call(text: str, tools: Tools) -> bool:
    """Whether the JSON at the beginning of an answer is a call, and not an answer in JSON."""
    try:
        value, _ = _DECODER.raw_decode(text)
    except (ValueError, RecursionError):  # cut, perhaps
        return any(f'"{tool["function"]["name"]}"' in text for tool in tools)
    return "name" in value and "parameters" in value


def _call(value: Any, text: str) -> ToolCall | InvalidToolCall:
    """A call from a JSON value that says it: ``{"name", "arguments"}`` or ``"parameters"``."""
    if isinstance(value, Mapping) and isinstance(value.get("function"), Mapping):
        value = value["function"]
    name = value.get("name") if isinstance(value, Mapping) else None
    if not isinstance(name, str) or not name:
        return InvalidToolCall(text=text, error="The call names no tool.")
    return _named(name, value.get("arguments", value.get("parameters", {})), text)


def _named(name: str, arguments: Any, text: str) -> ToolCall | InvalidToolCall:
    name = whole_characters(name)  # JSON may write half of one, which nobody can send on
    wrong = ""
    if isinstance(arguments, str):  # some models write JSON into a string
        try:
            arguments = parse_json(arguments or "{}", **_STRICT)
        except ValueError as error:
            wrong = f"The arguments are no JSON: {error}"
    if not wrong and not isinstance(arguments, Mapping):
        wrong = "The arguments are no JSON object."
    elif levels_of(arguments) > _MAX_DEPTH:
        wrong = f"The arguments are nested more than {_MAX_DEPTH} deep."
    if wrong:
        return InvalidToolCall(text=text, error=wrong, name=name)
    return ToolCall(name=name, arguments=map_strings(arguments, whole_characters))


_HERMES = ("<tool_call>", "</tool_call>")
_FUNCTION = re.compile(r"\s*<function=([^>]+)>")
_PARAMETER = re.compile(
    r"<parameter=([^>]+)>\n?(.*?)\n?</parameter>(?=\s*(?:<parameter=[^>]+>|</function>\s*\Z))",
    re.DOTALL,
)


def _read_xml(answer: AnswerText, start: int, tools: Tools) -> Iterator[Piece]:
    """Calls of Qwen3-Coder, whose values are plain text."""
    schemas = {tool["function"]["name"]: parameters_of(tool) for tool in tools}
    (opener, closer), text, at = _HERMES, answer.text, start
    while (opened := answer.find(opener, at)) >= 0:
        yield text[at:opened]
        begin = opened + len(opener)
        end = answer.find(closer, begin)
        # A value may hold the end of a call where that is no token.
        while end >= 0 and not text[begin:end].rstrip().endswith("</function>"):
            end = -1 if closer in answer.tokens else answer.find(closer, end + 1)
        inner = text[begin:] if end < 0 else text[begin:end]
        at = len(text) if end < 0 else end + len(closer)
        named = _FUNCTION.match(inner)
        name = named and named[1]
        parameters = _PARAMETER.findall(inner)
        arguments = dict(parameters)
        if name is None or not inner.rstrip().endswith("</function>"):
            yield InvalidToolCall(text=inner, error="The call has no end.", name=name)
        elif len(arguments) < len(parameters):
            wrong = "The call gives a parameter twice."
            yield InvalidToolCall(text=inner, error=wrong, name=name)
        else:
            properties = schemas.get(name, {}).get("properties", {})
            typed = {key: _typed(it, properties.get(key)) for key, it in arguments.items()}
            yield _named(name, typed, inner)
    yield text[at:]


def _typed(value: str, schema: Any) -> Any:
    """A value written as plain text: a string where the schema takes one, else JSON if it is some.

    Of a string that may be left out, ``null`` means that it is.
    """
    kinds = set[Any]()
    schema = schema if isinstance(schema, Mapping) else {}
    for part in (schema, *schema.get("anyOf", ()), *schema.get("oneOf", ())):
        kind = part.get("type") if isinstance(part, Mapping) else None
        kinds.update(kind if isinstance(kind, list) else [kind])
    if "string" in kinds and not (value == "null" and "null" in kinds):
        return value
    try:
        return parse_json(value, **_STRICT)
    except ValueError:
        return value


_GRANITE = ("<|tool_call|>", "<|/tool_call|>")
_DEEPSEEK = tuple(
    f"<｜tool▁{name}｜>" for name in "calls▁begin call▁begin sep call▁end calls▁end".split()
)
_CALLS, _BEGIN, _SEPARATOR, _END, _CALLS_END = _DEEPSEEK
_DEEPSEEK_V3_1 = ToolFormat(
    name="DeepSeek",
    signs=(_CALLS,),
    openers=(_CALLS, _BEGIN),
    markers=_DEEPSEEK,
    call=f"{_CALLS}{_BEGIN}{{name}}{_SEPARATOR}{ARGUMENTS}{_END}{_CALLS_END}",
    head=rf"(?:\s*{_BEGIN})?(?:\s*(?:function\s*{_SEPARATOR}\s*)?(?P<name>[^\s{{<][^\n{{<]*)"
    rf"(?:\n```json\n|{_SEPARATOR}))?",
    tail=rf"\s*(?:```)?\s*(?:{_END})?\s*(?:{_CALLS_END})?",
)
_MISTRAL_V3 = ToolFormat(
    name="Mistral",
    signs=("[TOOL_CALLS]",),
    openers=("[TOOL_CALLS]",),
    markers=("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),
    call=f'[TOOL_CALLS][{{"name": "{{name}}", "arguments": {ARGUMENTS}}}]',
    # Of newer ones the name, maybe with an id, before arguments.
    head=r"(?:\s*(?P<name>[^\s\[\]{}][^\[\]{}]*)(?:\[CALL_ID\][^\[\]{}]*)?(?:\[ARGS\]|(?=\{)))?",
)

#: Families in the order in which templates are compared with them, the more special first.
FORMATS: tuple[ToolFormat, ...] = (
    replace(
        _DEEPSEEK_V3_1,
        signs=(_CALLS, "```json"),
        call=f"{_CALLS}{_BEGIN}function{_SEPARATOR}{{name}}\n```json\n{ARGUMENTS}\n```"
        f"{_END}{_CALLS_END}",
    ),
    _DEEPSEEK_V3_1,
    replace(
        _MISTRAL_V3,
        signs=("[TOOL_CALLS]", "[ARGS]"),
        call=f"[TOOL_CALLS]{{name}}[ARGS]{ARGUMENTS}",
    ),
    _MISTRAL_V3,
    ToolFormat(
        name="Qwen3-Coder",
        signs=("<tool_call>", "<function="),
        openers=_HERMES[:1],
        markers=_HERMES,
        read=_read_xml,
    ),
    ToolFormat(
        name="Hermes/Qwen",
        signs=_HERMES[:1],
        openers=_HERMES[:1],
        markers=_HERMES,
        call=f'<tool_call>\n{{"name": "{{name}}", "arguments": {ARGUMENTS}}}\n</tool_call>',
        tail=r"\s*(?:</tool_call>)?",
    ),
    ToolFormat(
        name="Granite",
        signs=_GRANITE[:1],
        openers=_GRANITE[:1],
        markers=_GRANITE,
        call=f'<|tool_call|>[{{"name": "{{name}}", "arguments": {ARGUMENTS}}}]',
        tail=r"\s*(?:<\|/tool_call\|>)?",
    ),
    ToolFormat(
        name="Llama 3",
        signs=('"parameters"', "ipython"),
        openers=("<|python_tag|>",),
        markers=("<|python_tag|>",),
        call=f'{{"name": "{{name}}", "parameters": {ARGUMENTS}}}',
        tail=r"[\s;]*",
        whole="{",
    ),
)
