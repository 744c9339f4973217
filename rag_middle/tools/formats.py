"""How families of models write tool calls: a table, chosen by what the chat template holds.

A template tells its model how to write a call, so the words it writes tell the family. Sources:
the chat templates that the models' makers publish with their weights.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite
from typing import Any

from rag_middle.plain_data import map_strings, parse_json, whole_characters
from rag_middle.thinking import THINKING, thinking_of
from rag_middle.tools.checking import schema_error
from rag_middle.tools.definitions import InvalidToolCall, ToolCall, parameters_of


def _finite(text: str) -> float:
    if isfinite(number := float(text)):
        return number
    raise ValueError(f"{text} is no number of JSON")


#: Of JSON as it is defined: without NaN and infinities, which nobody can send on.
_STRICT: dict[str, Any] = {"parse_constant": _finite, "parse_float": _finite}
_DECODER = json.JSONDecoder(**_STRICT)

#: Of arguments: far more than tools have, and few enough for whoever copies or prints them.
_MAX_DEPTH = 64
#: A part of a forced call: text or a control token by its text, the JSON of the arguments.
ARGUMENTS = object()


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


Piece = str | ToolCall | InvalidToolCall
Tools = Sequence[Mapping[str, Any]]


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


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """A family's way to write tool calls.

    Attributes:
        name: of the family, for messages.
        signs: strings that a chat template of the family holds, all of them.
        openers: strings that begin calls, wherever they stand outside of calls.
        read: the pieces of an answer from an offset on, text and calls, in order.
        forced: the parts of one call in the form of this template, by the tool's name: text, and
            `ARGUMENTS` where these stand. None where calls cannot be forced.
        markers: the strings that may be control tokens.
        whole: a string that begins a call at the start of the answer only.
    """

    name: str
    signs: tuple[str, ...]
    openers: tuple[str, ...]
    read: Callable[[AnswerText, int, Tools], Iterator[Piece]]
    forced: Callable[[str, str], Sequence[Any]] | None
    markers: tuple[str, ...]
    whole: str = ""

    def call_start(self, answer: AnswerText) -> int:
        """Where in a growing answer a call may begin; its length if nowhere."""
        text, begin = answer.text, self._begin(answer)
        if self.whole and text[begin:].lstrip()[:1] in ("", self.whole):
            return begin
        starts = [answer.find(opener, begin) for opener in self.openers]
        starts += [
            _half_way(text, opener) for opener in self.openers if opener not in answer.tokens
        ]
        return min((start for start in starts if start >= 0), default=len(text))

    def message(self, answer: AnswerText, tools: Tools) -> ToolMessage:
        """Read a whole answer."""
        begin = self._begin(answer)
        pieces = list(self.read(answer, begin, tools))
        texts = [piece for piece in pieces if isinstance(piece, str)]
        if len(texts) < len(pieces):  # what separates calls is no text
            texts = [texts[0], *(piece for piece in texts[1:] if piece.strip())]
        return ToolMessage(
            answer.text[:begin] + "".join(texts),
            tuple(piece for piece in pieces if isinstance(piece, ToolCall)),
            tuple(piece for piece in pieces if isinstance(piece, InvalidToolCall)),
        )

    def forced_start(self, text: str, tools: Tools, template: str) -> int:
        """As `call_start`, for an answer that is one whole forced call or none."""
        written = "".join(text.split())
        for tool in tools:
            before, _ = self._around_arguments(tool["function"]["name"], template)
            opening = "".join("".join(before).split())
            if written.startswith(opening) or opening.startswith(written):
                return 0
        return len(text)

    def forced_message(self, text: str, tools: Tools, template: str) -> ToolMessage | None:
        """Read one whole forced call of one of the tools; None if the answer is something else.

        Only the arguments are read. What stands around them is known, and is searched for nowhere
        else: arguments may quote anything.
        """
        for tool in tools:
            name = tool["function"]["name"]
            before, after = self._around_arguments(name, template)
            # Decoders may write spaces between tokens.
            opening = re.match(r"\s*" + r"\s*".join(map(re.escape, before)) + r"\s*", text)
            if opening is None:
                continue
            try:
                arguments, end = _DECODER.raw_decode(text, opening.end())
            except (ValueError, RecursionError) as error:
                wrong = f"The arguments are no JSON: {error}"
                return ToolMessage("", (), (InvalidToolCall(text=text, error=wrong, name=name),))
            closing = "".join("".join(after).split())
            if closing.startswith("".join(text[end:].split())):
                call = _named(name, arguments, text)
                if isinstance(call, ToolCall):
                    broken = schema_error(call.arguments, parameters_of(tool))
                    if broken is None:
                        return ToolMessage("", (call,))
                    call = InvalidToolCall(text=text, error=broken, name=name)
                return ToolMessage("", (), (call,))
        if text.lstrip().startswith(self.openers):
            return ToolMessage("", (), (InvalidToolCall(text=text, error="The call has no end."),))
        return None

    def _around_arguments(self, name: str, template: str) -> tuple[list[str], list[str]]:
        assert self.forced is not None
        parts = list(self.forced(name, template))
        at = parts.index(ARGUMENTS)
        return parts[:at], parts[at + 1 :]

    def _begin(self, answer: AnswerText) -> int:
        """Where the answer begins after thinking, which may mention calls.

        Thinking ends at the first `</think>`; cut before that, all of the text is thinking. What a
        call holds ends none, so where nothing says that the model thinks, no call may stand before
        it. Where it is no token, any text may quote it, and something has to say that the model
        thinks.
        """
        thinking = thinking_of(answer.text, begun=answer.thinking, find=answer.find)
        if thinking.end < 0:
            return len(answer.text) if thinking.stated else 0
        if not thinking.stated:
            if THINKING[1] not in answer.tokens:
                return 0
            calls = [answer.find(marker) for marker in self.openers]
            if any(0 <= call < thinking.end for call in calls):
                return 0
            if self.whole and answer.text.lstrip().startswith(self.whole):
                return 0
        return thinking.end


def format_of(template: str) -> ToolFormat | None:
    """The first format whose signs a chat template holds; None if it is of no known family."""
    for known in FORMATS:
        if all(sign in template for sign in known.signs):
            return known
    return None


def _half_way(text: str, opener: str) -> int:
    """Where `text` ends with the beginning of `opener`; -1 if it does not."""
    for length in range(min(len(opener) - 1, len(text)), 0, -1):
        if text.endswith(opener[:length]):
            return len(text) - length
    return -1


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
    if isinstance(arguments, str):  # some models write JSON into a string
        try:
            arguments = (
                parse_json(arguments, repeated_keys=True, **_STRICT) if arguments.strip() else {}
            )
        except ValueError as error:
            return InvalidToolCall(
                text=text, error=f"The arguments are no JSON: {error}", name=name
            )
    if not isinstance(arguments, Mapping):
        return InvalidToolCall(text=text, error="The arguments are no JSON object.", name=name)
    if not _is_flat(arguments):
        wrong = f"The arguments are nested more than {_MAX_DEPTH} deep."
        return InvalidToolCall(text=text, error=wrong, name=name)
    return ToolCall(name=name, arguments=map_strings(arguments, whole_characters))


def _is_flat(value: Any) -> bool:
    """Whether Python's own recursion, which copies and writes it, can follow a JSON value."""
    level = [value]
    for _ in range(_MAX_DEPTH):
        level = [
            item
            for holder in level
            for item in (holder.values() if isinstance(holder, Mapping) else holder)
            if isinstance(item, Mapping | list)
        ]
        if not level:
            return True
    return False


def _after_space(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _value(
    answer: AnswerText, start: int, nexts: Sequence[str], closers: Sequence[str]
) -> tuple[Any, str, int, int]:
    """JSON at an offset, read to its own end: strings in it may hold markers.

    Args:
        answer: that holds it.
        start: the offset, whitespace before the value included.
        nexts: what may follow the call.
        closers: what may stand between the value and its call's end; the last one ends the call,
            "" where it needs no end.

    Returns:
        The value; what is wrong with it, if anything; where it ends, and where reading goes on.
    """
    text = answer.text
    try:
        value, end = _DECODER.raw_decode(text, _after_space(text, start))
    except (ValueError, RecursionError) as error:
        # Nobody knows where the strings end, so only tokens are markers here.
        value, wrong, end = None, f"The call is no JSON: {error}", start
        markers = [marker for marker in (*nexts, *closers) if marker in answer.tokens]
    else:
        at = _after_space(text, end)
        for closer in closers:
            if text.startswith(closer, at):
                at += len(closer)
                if closer == closers[-1]:
                    return value, "", end, at
                at = _after_space(text, at)
        if at == len(text) or any(answer.find(marker, at) == at for marker in nexts):
            return value, "", end, at
        wrong = "The call is no JSON: text follows it."
        markers = [*nexts, *closers[-1:]]
    ends = [(at, marker) for marker in markers if (at := answer.find(marker, end)) >= 0]
    if not ends:
        return value, wrong, len(text), len(text)
    at, marker = min(ends)
    return value, wrong, at, at + len(marker) if marker in closers else at


# -- families ---------------------------------------------------------------------------------


def _read_json(
    answer: AnswerText,
    start: int,
    opener: str,
    closers: Sequence[str],
    header: re.Pattern[str] | None = None,
) -> Iterator[Piece]:
    """Calls that are JSON, one or a list of them, or a header with a name and JSON arguments."""
    text, at = answer.text, start
    while (opened := answer.find(opener, at)) >= 0:
        yield text[at:opened]
        begin = opened + len(opener)
        named = header.match(text, begin) if header else None
        name = named and named["name"].strip()
        value, wrong, end, at = _value(answer, named.end() if named else begin, (opener,), closers)
        written = text[begin:end].strip()
        if wrong:
            stated = re.search(r'"name"\s*:\s*"([^"]+)"', written)
            name = name or (stated and stated[1])
            yield InvalidToolCall(text=written, error=wrong, name=name)
        elif name:
            yield _named(name, value, written)
        else:
            values = value if isinstance(value, list) else [value]
            yield from (_call(item, written) for item in values)
    yield text[at:]


_FUNCTION = re.compile(r"\s*<function=([^>]+)>")
_PARAMETER = re.compile(
    r"<parameter=([^>]+)>\n?(.*?)\n?</parameter>(?=\s*(?:<parameter=[^>]+>|</function>\s*\Z))",
    re.DOTALL,
)


def _read_xml(answer: AnswerText, start: int, tools: Tools) -> Iterator[Piece]:
    schemas = {tool["function"]["name"]: parameters_of(tool) for tool in tools}
    (opener, closer), text, at = _HERMES, answer.text, start
    while (opened := answer.find(opener, at)) >= 0:
        yield text[at:opened]
        begin = opened + len(opener)
        end = answer.find(closer, begin)
        if closer not in answer.tokens:  # a value may hold it
            while end >= 0 and not text[begin:end].rstrip().endswith("</function>"):
                end = answer.find(closer, end + 1)
        inner = text[begin:] if end < 0 else text[begin:end]
        at = len(text) if end < 0 else end + len(closer)
        named = _FUNCTION.match(inner)
        name = named and named[1]
        parameters = _PARAMETER.findall(inner)
        if name is None or not inner.rstrip().endswith("</function>"):
            yield InvalidToolCall(text=inner, error="The call has no end.", name=name)
        elif len({parameter for parameter, _ in parameters}) < len(parameters):
            wrong = "The call gives a parameter twice."
            yield InvalidToolCall(text=inner, error=wrong, name=name)
        else:
            properties = schemas.get(name, {}).get("properties", {})
            arguments = {key: _typed(value, properties.get(key, {})) for key, value in parameters}
            yield _named(name, arguments, inner)
    yield text[at:]


def _typed(value: str, schema: Any) -> Any:
    """A value written as plain text: a string where the schema takes one, else JSON if it is some.

    Of a string that may be left out, ``null`` means that it is.
    """
    if _takes(schema, "string") and not (value == "null" and _takes(schema, "null")):
        return value
    try:
        return parse_json(value, repeated_keys=True, **_STRICT)
    except ValueError:
        return value


def _takes(schema: Any, kind: str) -> bool:
    """Whether a JSON schema names a type, by itself or as one of several."""
    if not isinstance(schema, Mapping):
        return False
    kinds, choices = schema.get("type"), [*_list(schema, "anyOf"), *_list(schema, "oneOf")]
    return kind in (kinds if isinstance(kinds, list) else [kinds]) or any(
        isinstance(choice, Mapping) and kind == choice.get("type") for choice in choices
    )


def _list(schema: Mapping[str, Any], name: str) -> list[Any]:
    value = schema.get(name)
    return value if isinstance(value, list) else []


_PYTHON_TAG = "<|python_tag|>"


def _read_llama(answer: AnswerText, start: int, tools: Tools) -> Iterator[Piece]:
    text, at = answer.text, _after_space(answer.text, start)
    # JSON from the start on is read as it stands: strings in it may hold the tag.
    tag = -1 if text.startswith("{", at) else answer.find(_PYTHON_TAG, start)
    if tag < 0 and not text.startswith("{", at):
        yield text[start:]
        return
    if tag >= 0:
        at = _after_space(text, tag + len(_PYTHON_TAG))
    first = at
    calls: list[ToolCall | InvalidToolCall] = []
    while at < len(text):
        try:
            value, end = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            stated = re.search(r'"name"\s*:\s*"([^"]+)"', text[at:])
            wrong = f"The call is no JSON: {error}"
            calls.append(InvalidToolCall(text=text[at:], error=wrong, name=stated and stated[1]))
            break
        is_call = isinstance(value, Mapping) and {"name", "parameters"} <= value.keys()
        if tag < 0 and not calls and not is_call:
            yield text[start:]  # an answer in JSON
            return
        calls.append(_call(value, text[at:end]))
        at = end
        while at < len(text) and text[at] in " \n;":
            at += 1
    names = {tool["function"]["name"] for tool in tools}
    is_unread = tag < 0 and all(isinstance(call, InvalidToolCall) for call in calls)
    if is_unread and not any(f'"{name}"' in text[first:] for name in names):
        yield text[start:]
        return
    yield text[start:tag] if tag >= 0 else ""
    yield from calls


#: A name, maybe with an id, before arguments.
_MISTRAL = re.compile(
    r"\s*(?P<name>[^\s\[\]{}][^\[\]{}]*(?=\[)|[\w.-]+\s*(?=\{))"
    r"(?:(?:\[CALL_ID\][^\[\]{}]*)?\[ARGS\]|(?=\{))"
)


def _read_deepseek(answer: AnswerText, start: int, tools: Tools) -> Iterator[Piece]:
    opener, closer, call, call_end, _ = _DEEPSEEK
    text, opened = answer.text, answer.find(opener, start)
    if opened < 0:
        yield text[start:]
        return
    yield text[start:opened]
    at = first = _after_space(text, opened + len(opener))
    while answer.find(call, at) == at:
        begin = at + len(call)
        named = _DEEPSEEK_NAME.match(text, begin)
        # Function, separator, name and a block; or name, separator, arguments.
        name = named and (named["fenced"] or named["plain"]).strip()
        value, wrong, end, at = _value(
            answer, named.end() if named else begin, (call, closer), ("```", call_end)
        )
        written = text[begin:end]
        if wrong or not name:
            name = None if name == "function" else name
            yield InvalidToolCall(text=written, error=wrong or "The call names no tool.", name=name)
        else:
            yield _named(name, value, written)
        at = _after_space(text, at)
    if at == first:
        yield InvalidToolCall(text=text[first:], error="The call has no end.")
    ended = answer.find(closer, at)
    yield text[ended + len(closer) :] if ended >= 0 else ""


def _object(name: str, arguments: str = "arguments") -> list[Any]:
    return [f'{{"name": {json.dumps(name, ensure_ascii=False)}, "{arguments}": ', ARGUMENTS, "}"]


def _force_mistral(name: str, template: str) -> list[Any]:
    if "[ARGS]" in template:
        return ["[TOOL_CALLS]", name, "[ARGS]", ARGUMENTS]
    return ["[TOOL_CALLS]", "[", *_object(name), "]"]


def _force_deepseek(name: str, template: str) -> list[Any]:
    if "```json" in template:
        inner = ["function", "<｜tool▁sep｜>", f"{name}\n```json\n", ARGUMENTS, "\n```"]
    else:
        inner = [name, "<｜tool▁sep｜>", ARGUMENTS]
    begin, end = ["<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"], "<｜tool▁call▁end｜>"
    return [*begin, *inner, end, "<｜tool▁calls▁end｜>"]


_HERMES = ("<tool_call>", "</tool_call>")
_GRANITE = ("<|tool_call|>", "<|/tool_call|>")
_DEEPSEEK = tuple(
    f"<｜tool▁{name}｜>" for name in "calls▁begin calls▁end call▁begin call▁end sep".split()
)
_DEEPSEEK_NAME = re.compile(r"(?P<plain>[^\n{]*?)<｜tool▁sep｜>(?:(?P<fenced>[^\n{]+)\n```json\n)?")

#: Families in the order in which templates are compared with them, the more special first.
FORMATS: tuple[ToolFormat, ...] = (
    ToolFormat(
        "DeepSeek", _DEEPSEEK[:1], _DEEPSEEK[:1], _read_deepseek, _force_deepseek, _DEEPSEEK
    ),
    ToolFormat(
        "Mistral",
        ("[TOOL_CALLS]",),
        ("[TOOL_CALLS]",),
        lambda answer, start, _: _read_json(answer, start, "[TOOL_CALLS]", [""], _MISTRAL),
        _force_mistral,
        ("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),
    ),
    ToolFormat("Qwen3-Coder", ("<tool_call>", "<function="), _HERMES[:1], _read_xml, None, _HERMES),
    ToolFormat(
        "Hermes/Qwen",
        ("<tool_call>",),
        _HERMES[:1],
        lambda answer, start, _: _read_json(answer, start, _HERMES[0], _HERMES[1:]),
        lambda name, _: ["<tool_call>", "\n", *_object(name), "\n", "</tool_call>"],
        _HERMES,
    ),
    ToolFormat(
        "Granite",
        _GRANITE[:1],
        _GRANITE[:1],
        lambda answer, start, _: _read_json(answer, start, _GRANITE[0], [_GRANITE[1], ""]),
        lambda name, _: ["<|tool_call|>", "[", *_object(name), "]"],
        _GRANITE,
    ),
    ToolFormat(
        "Llama 3",
        ('"parameters"', "ipython"),
        ("<|python_tag|>",),
        _read_llama,
        lambda name, _: _object(name, "parameters"),
        ("<|python_tag|>",),
        whole="{",
    ),
)
