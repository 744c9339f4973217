"""Messages, and the documents in them."""

from __future__ import annotations

import json
from bisect import bisect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from typing import Any, Literal

from rag_middle.documents import ContextPrompt, Document, MarkedText
from rag_middle.errors import PromptError
from rag_middle.plain_data import is_finite_number, levels_of

Message = Mapping[str, Any]
Content = MarkedText | ContextPrompt | None

SYSTEM_ROLES = frozenset({"system", "developer"})
_MOST_NESTED = 100  # levels; a template that writes many more ends Python's stack
MODEL_ROLES = frozenset({"assistant", "model"})  # as Gemma's template names it


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages, with documents in one of them.

    Attributes:
        messages: ``{"role", "content"}`` and whatever else the template reads; without markers.
        prompt: the content of message ``at``, with its documents.
        at: 0-based index of that message, empty in ``messages``; None where there are no documents.
        tools: that the template shows the model, in OpenAI's form.
    """

    messages: tuple[Message, ...]
    prompt: ContextPrompt = field(default_factory=ContextPrompt)
    at: int | None = None
    tools: tuple[Message, ...] = ()

    @classmethod
    def of_prompt(cls, prompt: ContextPrompt) -> Conversation:
        """A conversation of one user message."""
        if not prompt.documents:
            return cls((message_of("user", prompt.text),))
        return cls((message_of("user", ""),), prompt, 0)

    @classmethod
    def of_messages(cls, messages: Sequence[Message], continued: bool = False) -> Conversation:
        """Take the documents of the system messages at the start and of the last turn that has any.

        A turn ends where the model answers, if only with an empty text; calling a tool ends none,
        whatever is said or thought before. Documents of several messages are put together where the
        first one stands: each is there once for every message that holds it, so a document that a
        user sends again is one more and takes no other's place. Documents of earlier turns become
        plain text, and so do those in a string of the model: nobody retrieved what it said. An
        answered message that holds only documents of the system messages is such an earlier one,
        whatever other documents there are: frameworks fill in history as if it were a template.

        A content is a string or `MarkedText`, with marked documents or without, or a
        `ContextPrompt`. Where the last message is `continued`, the model has not answered yet.

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
        roles = [message["role"] for message in messages]
        ends = indices_of_answers(
            [
                (role, content is None or bool(message.get("tool_calls")), _speaks(content))
                for role, message, content in zip(roles, messages, contents, strict=True)
            ]
        )
        if continued:
            ends = [end for end in ends if end < len(messages) - 1]
        prompts: dict[int, ContextPrompt] = {}
        for index in _with_documents(roles, contents, ends):
            content = contents[index]
            if isinstance(content, MarkedText):
                # What was said in an earlier turn must not make later ones fail.
                earlier = index < max(ends, default=-1) and roles[index] not in SYSTEM_ROLES
                content = content.prompt("last" if earlier else "single")
            assert content is not None, "it holds documents"
            prompts[index] = content
            plain[index] = content.prefix + content.suffix
        at = min(prompts, default=None)
        if at is not None:
            plain[at] = ""
        return cls(
            tuple(
                {**_plain_fields(message, index), "content": text}
                for index, (message, text) in enumerate(zip(messages, plain, strict=True))
            ),
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
                "The messages start with a system message, and system was given too. Only one of "
                "the two can be."
            )
        messages = (message_of("system", system), *self.messages)
        return replace(self, messages=messages, at=None if self.at is None else self.at + 1)


def _with_documents(
    roles: Sequence[str], contents: Sequence[Content], ends: Sequence[int]
) -> list[int]:
    """0-based indices of the messages whose documents count, see `Conversation.of_messages`."""
    start = next(
        (index for index, role in enumerate(roles) if role not in SYSTEM_ROLES), len(roles)
    )
    holding = {
        index: texts
        for index, (role, content) in enumerate(zip(roles, contents, strict=True))
        if (texts := _texts(content))
        and (isinstance(content, ContextPrompt) or role not in MODEL_ROLES)
    }
    in_system = {text for index, texts in holding.items() if index < start for text in texts}
    turns = {
        index: bisect(ends, index)
        for index, texts in holding.items()
        if index >= start and not (ends and index < ends[-1] and in_system.issuperset(texts))
    }
    last = max(turns.values(), default=None)
    return [
        index for index in holding if index < start or (index in turns and turns[index] == last)
    ]


def indices_of_answers(messages: Sequence[tuple[str, bool, bool]]) -> list[int]:
    """0-based indices of the messages in which the model answers, if only with an empty text.

    A call is none, unless it comes with words and the user speaks next: nothing returns then.

    Args:
        messages: of each the role, whether it calls tools, and whether it says anything.
    """
    following = [role for role, _, _ in messages[1:]] + [None] * bool(messages)
    return [
        index
        for index, ((role, calls, speaks), speaker) in enumerate(
            zip(messages, following, strict=True)
        )
        if role in MODEL_ROLES and (not calls or (speaker == "user" and speaks))
    ]


def _speaks(content: Content) -> bool:
    return content is not None and bool(content.text.strip())


def _texts(content: Content) -> list[str]:
    """The documents of a content, as a model reads them."""
    if isinstance(content, ContextPrompt):
        return [document.render() for document in content.documents]
    return [] if content is None else content.documents()


def _joined(prompts: Sequence[ContextPrompt]) -> ContextPrompt:
    """The first prompt, with the documents of all."""
    if len(prompts) < 2:
        return prompts[0] if prompts else ContextPrompt()
    documents = gathered(document for prompt in prompts for document in prompt.documents)
    return ContextPrompt(prompts[0].prefix, documents, prompts[0].suffix)


def gathered(documents: Iterable[Document]) -> list[Document]:
    """Documents of several origins, as one list of which `ContextPrompt.scores` knows all.

    Where some have a score, those without one get the lowest: marked text carries none, and one
    such document more must not make the others' scores useless.
    """
    gathering = list(documents)
    scores = [document.metadata.get("score") for document in gathering]
    lowest = min(filter(is_finite_number, scores), default=None)
    if lowest is None:
        return gathering
    return [
        document
        if is_finite_number(score)
        else replace(document, metadata={**document.metadata, "score": lowest})
        for document, score in zip(gathering, scores, strict=True)
    ]


def prompt_of_parts(
    parts: Iterable[MarkedText | Document], groups: Literal["single", "last"] = "single"
) -> ContextPrompt:
    """A message of texts and documents, its documents together where the first one stands.

    Args:
        parts: in order; a text may hold marked documents.
        groups: of each text, as of `parse`.

    Raises:
        MarkerError: as `parse` does.

    Warns:
        UnreadMarkersWarning: as `parse` does.
    """
    before: list[str] = []
    documents: list[Document] = []
    after: list[str] = []
    for part in parts:
        if isinstance(part, Document):
            documents.append(part)
            continue
        part.warn_of_strays()
        prompt = part.prompt(groups)
        (after if documents else before).append(prompt.prefix)
        documents += prompt.documents
        (after if documents else before).append(prompt.suffix)
    prefix, suffix = (
        "\n\n".join(text.strip("\n") for text in texts if text.strip()) for texts in (before, after)
    )
    return ContextPrompt(f"{prefix}\n\n" if prefix else "", gathered(documents), suffix)


def with_documents(prompt: Any, documents: Sequence[Document]) -> Any:
    """A prompt with documents at the beginning of its last message of the user.

    Args:
        prompt: a text, or chat messages whose contents are strings or `ContextPrompt`.
        documents: in order; with none the prompt stays as it is.

    Raises:
        PromptError: there is no message of the user.
    """
    if not documents:
        return prompt
    if isinstance(prompt, str):
        return prompt_of_parts([*documents, MarkedText(prompt)])
    users = [at for at, message in enumerate(prompt) if message["role"] == "user"]
    if not users:
        raise PromptError("documents go with a question: add a message of the user.")
    content = prompt[users[-1]]["content"]
    if isinstance(content, str):
        together = with_documents(content, documents)
    else:
        together = ContextPrompt(
            content.prefix, [*documents, *content.documents], content.suffix, content.separator
        )
    return [
        {**message, "content": together} if at == users[-1] else message
        for at, message in enumerate(prompt)
    ]


def message_of(role: str, content: str) -> Message:
    """A message of text."""
    return {"role": role, "content": content}


def _content(message: Message, index: int) -> Content:
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or not isinstance(content, str | Content):
        raise PromptError(
            f"Message {index} needs a role and a content: strings, or a ContextPrompt as content; "
            f"got role={role!r:.100} and content of type {type(content).__name__}. Join content "
            "blocks into one string."
        )
    if isinstance(content, str):
        content = MarkedText(content)
    if isinstance(content, MarkedText) and role not in MODEL_ROLES:
        content.warn_of_strays()
    return content


def _plain_fields(message: Message, index: int) -> dict[str, Any]:
    """A message in plain data, whose every string can be told: objects have strings of their own.

    Raises:
        PromptError: a field holds something that is no JSON and cannot be turned into it.
    """

    def plain(value: Any) -> Any:
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, str):
            return str.__str__(value)  # and not one of a class of its own
        if isinstance(value, list | tuple):
            return [plain(item) for item in value]
        if is_dataclass(value) and not isinstance(value, type):
            value = asdict(value)
        elif callable(getattr(value, "model_dump", None)):  # of pydantic
            value = value.model_dump()
        if isinstance(value, Mapping) and all(isinstance(key, str | int) for key in value):
            return {plain(key): plain(item) for key, item in value.items()}
        raise PromptError(
            f"Message {index} holds a {type(value).__name__} that a chat template cannot be given: "
            "pass strings, numbers, lists and mappings with strings as keys."
        )

    fields = {str(name): plain(item) for name, item in message.items() if name != "content"}
    if isinstance(fields.get("tool_calls"), list):
        fields["tool_calls"] = [_with_read_arguments(call) for call in fields["tool_calls"]]
    return fields


def _with_read_arguments(call: Any) -> Any:
    """A tool call whose arguments are an object: OpenAI's form writes JSON into a string."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except (ValueError, RecursionError):
        return call
    if levels_of(arguments) > _MOST_NESTED:  # stays a text, which a template writes as it is
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def _plain(content: Content) -> str | None:
    """A content with its documents as text."""
    if isinstance(content, MarkedText):
        return content.plain()
    return None if content is None else content.text
