"""Messages as clients write them: roles, calls of tools and their results, log-probabilities."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rag_middle.documents import ContextPrompt, Document, MarkedText
from rag_middle.errors import PromptError
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
    documents: Sequence[Document] = (),
    *,
    counted: bool = False,
) -> list[dict[str, Any]]:
    """Messages, from the fields and the parts of each.

    Documents of a message are put together where its first one stands. What was said in an earlier
    turn must not make later ones fail, so there only the last group of marked documents counts.

    Args:
        turns: a message without parts says nothing, as one that calls tools alone.
        documents: more, at the beginning of the last message of the user.
        counted: to be counted and not sent, so that nothing must fail: programs count parts of a
            history, where an answered message may seem to be of this turn.

    Raises:
        PromptError: `documents`, and no message of the user.
        MarkerError: marked documents of this turn do not stand together.
    """
    turns = list(turns)
    if documents:
        of_user = [at for at, (fields, _) in enumerate(turns) if fields["role"] == "user"]
        if not of_user:
            raise PromptError("documents go with a question: add a message with the role 'user'.")
        last = of_user[-1]
        fields, parts = turns[last]
        turns[last] = fields, [*documents, *parts]
    spoken = [
        (fields["role"], not parts or bool(fields.get("tool_calls")), speaks(parts))
        for fields, parts in turns
    ]
    answered = max(indices_of_answers(spoken), default=-1)
    return [
        {**fields, "content": _content(fields["role"], parts, at < answered, counted)}
        for at, (fields, parts) in enumerate(turns)
    ]


def speaks(parts: Sequence[Part]) -> bool:
    """Whether a message says anything."""
    return any(not isinstance(part, MarkedText) or part.text.strip() for part in parts)


def _content(
    role: str, parts: Sequence[Part], earlier: bool, counted: bool
) -> str | MarkedText | ContextPrompt:
    texts = [part for part in parts if isinstance(part, MarkedText)]
    if role == "assistant":  # nobody retrieved what the model itself said
        return "".join(text.text for text in texts)
    if len(parts) == len(texts) == 1:
        return texts[0].prompt("last") if counted else texts[0]
    prompt = prompt_of_parts(parts, "last" if earlier or counted else "single")
    return prompt if prompt.documents else ContextPrompt(suffix=prompt.prefix.rstrip("\n"))


def message_fields(
    role: str,
    *,
    with_tools: bool,
    calls: Iterable[tuple[str | None, str, Mapping[str, Any] | str]] = (),
    result_of: tuple[str | None, str | None] | None = None,
    thinking: Iterable[object] = (),
) -> dict[str, Any]:
    """What a message has beside its content, as chat templates read it.

    Args:
        role: the client's name for who speaks.
        with_tools: the template shows tools, so it writes calls and results as such; else the user
            quotes results, and calls are left out.
        calls: id, name of the tool and arguments of each call in it.
        result_of: id of the call and name of the tool whose result it is.
        thinking: what the model thought before it answered. Templates show it where the model was
            trained to see it, as between calls of tools.
    """
    fields: dict[str, Any] = {"role": template_role(role)}
    if with_tools and result_of is not None:
        named = dict(zip(("tool_call_id", "name"), result_of, strict=True))
        fields = {"role": "tool", **{name: value for name, value in named.items() if value}}
    entries = [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        for call_id, name, arguments in (calls if with_tools else ())
    ]
    if entries:
        fields["tool_calls"] = entries
    if text := "\n".join(part for part in thinking if part and isinstance(part, str)):
        fields["reasoning_content"] = text
    return fields


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
