"""How families of models write tool calls: a table, chosen by what the chat template holds.

A template tells its model how to write a call, so the words it writes tell the family. Sources:
the chat templates that the models' makers publish with their weights.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rag_middle.tools.definitions import InvalidToolCall, ToolCall, parameters_of

__all__ = ["FORMATS", "ToolFormat", "ToolMessage", "format_of"]

_DECODER = json.JSONDecoder()

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


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """A family's way to write tool calls.

    Attributes:
        name: of the family, for messages.
        signs: strings that a chat template of the family holds, all of them.
        openers: strings that begin calls, wherever they stand.
        read: the pieces of an answer, text and calls, in order.
        forced: the parts of one call in the form of this template, by the tool's name: text, and
            `ARGUMENTS` where these stand. None where calls cannot be forced.
        markers: the strings that may be control tokens.
        whole: a string that begins a call at the start of the answer only.
    """

    name: str
    signs: tuple[str, ...]
    openers: tuple[str, ...]
    read: Callable[[str, Tools], Iterator[Piece]]
    forced: Callable[[str, str], Sequence[Any]] | None
    markers: tuple[str, ...]
    whole: str = ""

    def call_start(self, text: str) -> int:
        """Where in a growing answer a call may begin; its length if nowhere."""
        if self.whole and text.lstrip().startswith(self.whole):
            return 0
        starts = [text.find(opener) for opener in self.openers]
        starts += [_half_way(text, opener) for opener in self.openers]
        return min((start for start in starts if start >= 0), default=len(text))

    def message(self, text: str, tools: Tools) -> ToolMessage:
        """Read a whole answer."""
        # What a model thinks before it answers may mention calls.
        thinking = text.rfind("</think>")
        begin = thinking + len("</think>") if thinking >= 0 else 0
        pieces = list(self.read(text[begin:], tools))
        texts = [piece for piece in pieces if isinstance(piece, str)]
        if len(texts) < len(pieces):  # what separates calls is no text
            texts = [texts[0], *(piece for piece in texts[1:] if piece.strip())]
        return ToolMessage(
            text[:begin] + "".join(texts),
            tuple(piece for piece in pieces if isinstance(piece, ToolCall)),
            tuple(piece for piece in pieces if isinstance(piece, InvalidToolCall)),
        )


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
    if isinstance(arguments, str):  # some models write JSON into a string
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except ValueError as error:
            return InvalidToolCall(
                text=text, error=f"The arguments are no JSON: {error}", name=name
            )
    if not isinstance(arguments, Mapping):
        return InvalidToolCall(text=text, error="The arguments are no JSON object.", name=name)
    return ToolCall(name=name, arguments=dict(arguments))


def _json_call(text: str) -> list[ToolCall | InvalidToolCall]:
    """The calls in a JSON value: one, or a list of them."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        named = re.search(r'"name"\s*:\s*"([^"]+)"', text)
        name = named and named.group(1)
        return [InvalidToolCall(text=text, error=f"The call is no JSON: {error}", name=name)]
    values = value if isinstance(value, list) else [value]
    return [_call(item, text) for item in values]


def _between(text: str, opener: str, closer: str) -> Iterator[tuple[str, str | None]]:
    """Text before each opener, and what stands between it and the next closer, None at the end."""
    while True:
        before, found, text = text.partition(opener)
        if not found:
            yield before, None
            return
        inner, _, text = text.partition(closer)
        yield before, inner


# -- families ---------------------------------------------------------------------------------


def _read_hermes(text: str, tools: Tools) -> Iterator[Piece]:
    for before, inner in _between(text, "<tool_call>", "</tool_call>"):
        yield before
        if inner is not None:
            yield from _json_call(inner.strip())


_PARAMETER = re.compile(r"<parameter=([^>]+)>\n?(.*?)\n?</parameter>", re.DOTALL)


def _read_xml(text: str, tools: Tools) -> Iterator[Piece]:
    schemas = {tool["function"]["name"]: parameters_of(tool) for tool in tools}
    for before, inner in _between(text, "<tool_call>", "</tool_call>"):
        yield before
        if inner is None:
            continue
        named = re.match(r"\s*<function=([^>]+)>", inner)
        if named is None or "</function>" not in inner:
            name = named and named.group(1)
            yield InvalidToolCall(text=inner, error="The call has no end.", name=name)
            continue
        properties = schemas.get(named.group(1), {}).get("properties", {})
        arguments = {
            name: _typed(value, properties.get(name, {}))
            for name, value in _PARAMETER.findall(inner)
        }
        yield ToolCall(name=named.group(1), arguments=arguments)


def _typed(value: str, schema: Any) -> Any:
    """A value written as plain text: a string where the schema says so, else JSON if it is some."""
    kinds = schema.get("type", ()) if isinstance(schema, Mapping) else ()
    if kinds == "string":
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def _read_llama(text: str, tools: Tools) -> Iterator[Piece]:
    before, marked, rest = text.partition("<|python_tag|>")
    if not marked and not text.lstrip().startswith("{"):
        yield text
        return
    calls: list[ToolCall | InvalidToolCall] = []
    rest = (rest if marked else text).strip()
    written = rest
    while rest:
        try:
            value, end = _DECODER.raw_decode(rest)
        except (ValueError, RecursionError):
            calls += _json_call(rest)
            break
        is_call = isinstance(value, Mapping) and {"name", "parameters"} <= value.keys()
        if not marked and not calls and not is_call:
            yield text  # an answer in JSON
            return
        calls.append(_call(value, rest[:end]))
        rest = rest[end:].lstrip(" \n;")
    names = {tool["function"]["name"] for tool in tools}
    is_unread = not marked and all(isinstance(call, InvalidToolCall) for call in calls)
    if is_unread and not any(f'"{name}"' in written for name in names):
        yield text
        return
    yield before if marked else ""
    yield from calls


def _read_mistral(text: str, tools: Tools) -> Iterator[Piece]:
    before, *calls = text.split("[TOOL_CALLS]")
    yield before
    for written in calls:
        if "[ARGS]" in written:
            name, _, arguments = written.partition("[ARGS]")
            name = name.partition("[CALL_ID]")[0].strip()
            yield _named(name, arguments.strip(), written)
        elif (plain := re.match(r"\s*([\w.-]+)\s*(\{.*)", written, re.DOTALL)) is not None:
            yield _named(plain.group(1), plain.group(2).strip(), written)
        else:
            yield from _json_call(written.strip())


def _read_deepseek(text: str, tools: Tools) -> Iterator[Piece]:
    before, opened, rest = text.partition("<｜tool▁calls▁begin｜>")
    yield before
    if not opened:
        return
    calls, _, after = rest.partition("<｜tool▁calls▁end｜>")
    inners = [
        inner
        for _, inner in _between(calls, "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>")
        if inner is not None
    ]
    for inner in inners:
        first, separator, second = inner.partition("<｜tool▁sep｜>")
        fenced = re.match(r"(.*?)\n```json\n(.*?)\n```\s*$", second, re.DOTALL)
        if fenced:  # function, separator, name and a block
            yield _named(fenced.group(1).strip(), fenced.group(2), inner)
        elif separator and first.strip() != "function":  # name, separator, arguments
            yield _named(first.strip(), second.strip(), inner)
        else:
            yield InvalidToolCall(text=inner, error="The call has no end.")
    if not inners:
        yield InvalidToolCall(text=calls, error="The call has no end.")
    yield after


def _read_granite(text: str, tools: Tools) -> Iterator[Piece]:
    for before, inner in _between(text, "<|tool_call|>", "<|/tool_call|>"):
        yield before
        if inner is not None:
            yield from _json_call(inner.strip())


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
_DEEPSEEK = tuple(
    f"<｜tool▁{name}｜>" for name in "calls▁begin calls▁end call▁begin call▁end sep".split()
)

#: Families in the order in which templates are compared with them, the more special first.
FORMATS: tuple[ToolFormat, ...] = (
    ToolFormat(
        "DeepSeek", _DEEPSEEK[:1], _DEEPSEEK[:1], _read_deepseek, _force_deepseek, _DEEPSEEK
    ),
    ToolFormat(
        "Mistral",
        ("[TOOL_CALLS]",),
        ("[TOOL_CALLS]",),
        _read_mistral,
        _force_mistral,
        ("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),
    ),
    ToolFormat("Qwen3-Coder", ("<tool_call>", "<function="), _HERMES[:1], _read_xml, None, _HERMES),
    ToolFormat(
        "Hermes/Qwen",
        ("<tool_call>",),
        _HERMES[:1],
        _read_hermes,
        lambda name, _: ["<tool_call>", "\n", *_object(name), "\n", "</tool_call>"],
        _HERMES,
    ),
    ToolFormat(
        "Granite/Phi",
        ("<|tool_call|>",),
        ("<|tool_call|>",),
        _read_granite,
        lambda name, _: ["<|tool_call|>", "[", *_object(name), "]"],
        ("<|tool_call|>", "<|/tool_call|>"),
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
