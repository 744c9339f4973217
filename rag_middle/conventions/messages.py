"""Messages as clients write them: roles, calls of tools and their results, log-probabilities."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rag_middle.documents import ContextPrompt, Document, MarkedText
from rag_middle.errors import UnsupportedGenerationError
from rag_middle.tokens.conversation import indices_of_answers, prompt_of_parts

if TYPE_CHECKING:
    from rag_middle.generation.results import TokenLogProbability

#: A part of a message: text in which markers were looked for, or a document.
Part = MarkedText | Document

#: What clients call those who speak. Most templates refuse messages of a tool or a function.
_ROLES = {
    "ai": "assistant",
    "chatbot": "assistant",
    "developer": "system",
    "function": "user",
    "human": "user",
    "model": "assistant",
    "tool": "user",
}


def with_extra_body(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a call, with those of ``extra_body``: what clients of vLLM send beside them.

    Raises:
        UnsupportedGenerationError: no mapping, or one thing twice.
    """
    rest = {**arguments}
    extra = rest.pop("extra_body", None) or {}
    if not isinstance(extra, Mapping):
        raise UnsupportedGenerationError("extra_body must be a mapping of options.")
    for name in rest.keys() & extra.keys():
        raise UnsupportedGenerationError(f"{name} was given twice: leave it out of extra_body.")
    return {**rest, **extra}


def template_role(role: str, *, with_tools: bool = False) -> str:
    """The role of a chat template that a client's role stands for.

    Args:
        role: the client's.
        with_tools: the template is shown tools, so it writes what they returned as such; else the
            user quotes it.
    """
    return role if with_tools and role == "tool" else _ROLES.get(role, role)


def with_contents(
    turns: Sequence[tuple[Mapping[str, Any], Sequence[Part]]],
) -> list[dict[str, Any]]:
    """Messages, from the fields and the parts of each.

    Documents of a message are put together where its first one stands. What was said in an earlier
    turn must not make later ones fail, so there only the last group of marked documents counts.
    """
    spoken = [
        (fields["role"], not parts or bool(fields.get("tool_calls")), speaks(parts))
        for fields, parts in turns
    ]
    answered = max(indices_of_answers(spoken), default=-1)
    return [
        {**fields, "content": _content(fields["role"], parts, earlier=at < answered)}
        for at, (fields, parts) in enumerate(turns)
    ]


def speaks(parts: Sequence[Part]) -> bool:
    """Whether a message says anything."""
    return any(not isinstance(part, MarkedText) or part.text.strip() for part in parts)


def _content(
    role: str, parts: Sequence[Part], *, earlier: bool
) -> str | MarkedText | ContextPrompt:
    texts = [part for part in parts if isinstance(part, MarkedText)]
    if role == "assistant":  # nobody retrieved what the model itself said
        return "".join(text.text for text in texts)
    if len(parts) == len(texts) == 1:
        return texts[0]
    prompt = prompt_of_parts(parts, "last" if earlier else "single")
    return prompt if prompt.documents else ContextPrompt(suffix=prompt.prefix.rstrip("\n"))


def tool_calls_field(
    calls: Iterable[tuple[str | None, str, Mapping[str, Any] | str]],
) -> dict[str, Any]:
    """The field ``tool_calls`` of a message in which the model called tools; empty without calls.

    Args:
        calls: id, name of the tool and arguments of each.
    """
    entries = [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        for call_id, name, arguments in calls
    ]
    return {"tool_calls": entries} if entries else {}


def reasoning_field(thinking: Iterable[object]) -> dict[str, Any]:
    """The field of a message in which the model thought before it answered; empty without.

    Chat templates show it where the model was trained to see it, as between calls of tools.
    """
    text = "\n".join(part for part in thinking if part and isinstance(part, str))
    return {"reasoning_content": text} if text else {}


def tool_result_fields(call_id: str | None, name: str | None) -> dict[str, Any]:
    """What a message with the result of a call has beside its content: its role, and what is known.

    Args:
        call_id: of the call.
        name: of the tool.
    """
    known = {"tool_call_id": call_id or None, "name": name or None}
    return {"role": "tool", **{key: value for key, value in known.items() if value is not None}}


def openai_logprobs(
    tokens: Sequence[TokenLogProbability], token_text: Callable[[int], str]
) -> dict[str, Any]:
    """The field ``logprobs`` of a chat completion, JSON-ready.

    Args:
        tokens: of the answer, in order.
        token_text: what a token adds to a text.
    """

    def entry(token_id: int, log_probability: float) -> dict[str, Any]:
        text = token_text(token_id)
        # A part of a character has bytes that its text does not say.
        is_whole = "\N{REPLACEMENT CHARACTER}" not in text
        return {
            "token": text,
            "logprob": log_probability,
            "bytes": list(text.encode()) if is_whole else None,
        }

    content = [
        {
            **entry(token.token_id, token.log_probability),
            "top_logprobs": [entry(*other) for other in token.alternatives],
        }
        for token in tokens
    ]
    return {"content": content, "refusal": None}
