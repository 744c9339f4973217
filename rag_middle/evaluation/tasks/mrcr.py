"""MRCR: which of several alike replies of a long conversation is to be given again."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, ClassVar

from rag_middle.documents import Document
from rag_middle.errors import EvaluationDataError
from rag_middle.evaluation.conditions import Condition, Item
from rag_middle.evaluation.tasks.data_files import get_field
from rag_middle.evaluation.tasks.published import PublishedTask, published_item
from rag_middle.plain_data import parse_json

__all__ = ["Mrcr"]

_HASH_CHARACTERS = 12  # of the random text before answers of version 2
_EXAMPLE = re.compile(r"^=+ .*EXAMPLE.* =+\n+", re.MULTILINE)
_TURN = re.compile(r"(?:^|\n\n)User: ")
_REPLY = "\n\nAssistant: "


@dataclass(frozen=True, slots=True)
class _Conversation:
    """A conversation: what comes before, turns of a request and its reply, the question."""

    before: str
    turns: tuple[tuple[str, str], ...]
    asked: str


@dataclass(frozen=True, kw_only=True)
class Mrcr(PublishedTask):
    """Questions of MRCR (arXiv:2409.12640), in OpenAI's fields or those of DeepMind's version 2.

    OpenAI's rows have ``prompt`` (messages, as JSON), ``answer``, ``random_string_to_prepend``
    and more; DeepMind's ``queries`` (one text) and ``answer``. Each turn, a request with its reply,
    is a document, and the whole conversation one prompt ("User: ...", "Assistant: ..."), also where
    OpenAI's rows are meant as messages of a chat. The right reply is known, but which one is asked
    for depends on the order of all ("the second poem about ..."): it is not moved, and shuffled
    orders are refused.

    Score: ``sequence_ratio``, Python's `SequenceMatcher` ratio of answer and right reply without
    the random text before them, 0 where the answer lacks that. OpenAI's rows: the answer must begin
    with it. Version 2: what follows its last occurrence counts, without spaces at its ends.
    """

    name: ClassVar[str] = "mrcr"
    version: ClassVar[int] = 1
    title: ClassVar[str] = "MRCR"
    source: ClassVar[str] = "openai/mrcr (MIT) or google-deepmind/eval_hub, mrcr_v2 (Apache-2.0)"
    metrics: ClassVar[tuple[str, ...]] = ("sequence_ratio",)
    max_new_tokens: ClassVar[int] = 2048
    fixed_order: ClassVar[bool] = True
    fixed_length: ClassVar[bool] = True

    def _items(self, number: int, line: str, entry: dict[str, Any]) -> Iterable[Item]:
        answer = get_field(entry, "answer", str, line).lstrip()
        second_version = "queries" in entry
        if second_version:
            conversation = _transcript(line, get_field(entry, "queries", str, line))
            start = answer.strip()[:_HASH_CHARACTERS]
        else:
            conversation = _messages(line, "prompt", entry.get("prompt"))
            start = get_field(entry, "random_string_to_prepend", str, line)
        if not start or not answer.strip().startswith(start):
            raise EvaluationDataError(
                f"{line}: 'answer' should begin with the text of 'random_string_to_prepend' "
                f"({start!r}), got {answer[:40]!r}."
            )
        reply = answer.strip().removeprefix(start).strip()
        right = [turn for turn, (_, text) in enumerate(conversation.turns) if text.strip() == reply]
        if not right:
            raise EvaluationDataError(
                f"{line}: no reply of the conversation is the one of 'answer' ({reply[:40]!r}...). "
                "Give the rows as they were published."
            )
        yield published_item(
            number,
            conversation.asked,
            [answer],
            [Document(f"User: {request}{_REPLY}{text}") for request, text in conversation.turns],
            right[0],
            prefix=conversation.before,
            suffix=f"User: {conversation.asked}{_REPLY.rstrip()}",
            separator="\n\n",
            start=start,
            last_counts=second_version,
        )

    def scores(self, item: Item, condition: Condition, answer: str) -> dict[str, float]:
        ratio = _last_ratio if item.details["last_counts"] else _ratio
        return {"sequence_ratio": ratio(answer, item.answers[0], item.details["start"])}


def _ratio(response: str, answer: str, start: str) -> float:
    """Source: the function ``grade`` of the data card of openai/mrcr.

    Differs: spaces before the answer are left out, as the prompt may end with "Assistant:".
    """
    text = response.lstrip()
    if not text.startswith(start):
        return 0.0
    return SequenceMatcher(None, text.removeprefix(start), answer.removeprefix(start)).ratio()


def _last_ratio(response: str, answer: str, start: str) -> float:
    """Source: ``mrcr_v2_metric`` in ``eval_hub/mrcr_v2/run_evaluation.py`` of eval_hub."""
    _, marker, text = response.strip().rpartition(start)
    if not marker:
        return 0.0
    # The right answer first: the ratio is not symmetric.
    return SequenceMatcher(None, answer.strip().removeprefix(start).strip(), text.strip()).ratio()


def _messages(line: str, field: str, value: object) -> _Conversation:
    """A conversation of messages, as a list or as its JSON."""
    if isinstance(value, str):
        try:
            value = parse_json(value)
        except ValueError as error:
            raise EvaluationDataError(
                f"{line}: {field!r} should be a JSON list of messages: {error}."
            ) from error
    messages = [
        (message.get("role"), message.get("content"))
        for message in (value if isinstance(value, list) else [])
        if isinstance(message, dict) and isinstance(message.get("content"), str)
    ]
    roles = [role for role, _ in messages]
    contents = [str(content) for _, content in messages]
    # What precedes the first reply's request is an introduction with examples.
    first = roles.index("assistant") - 1 if "assistant" in roles else 0
    count = (len(roles) - first) // 2
    if (
        not isinstance(value, list)
        or len(messages) != len(value)
        or not count
        or first < 0
        or roles[first:] != ["user", "assistant"] * count + ["user"]
    ):
        raise EvaluationDataError(
            f"{line}: {field!r} should be messages with 'role' and 'content': requests of the user "
            "with their replies in turn, and a last request."
        )
    return _Conversation(
        before="".join(f"{content}\n\n" for content in contents[:first]),
        turns=tuple(zip(contents[first:-1:2], contents[first + 1 : -1 : 2], strict=True)),
        asked=contents[-1],
    )


def _transcript(line: str, text: str) -> _Conversation:
    """A conversation that is one text, after examples under lines of "=" signs."""
    if text.lstrip().startswith("["):
        return _messages(line, "queries", text)
    start = max((match.end() for match in _EXAMPLE.finditer(text)), default=0)
    before, *parts = _TURN.split(text[start:])
    turns: list[tuple[str, str]] = []
    for part in parts[:-1]:
        request, is_turn, reply = part.partition(_REPLY)
        if is_turn:
            turns.append((request, reply))
        elif turns:  # a reply that quotes "User: "
            turns[-1] = (turns[-1][0], f"{turns[-1][1]}\n\nUser: {part}")
    asked, is_asked, rest = parts[-1].partition(_REPLY.rstrip()) if parts else ("", "", "")
    if before.strip() or not turns or not is_asked or rest.strip():
        raise EvaluationDataError(
            f"{line}: 'queries' should be turns of 'User: ' and 'Assistant: ' with blank lines "
            "between them, and end with a request and 'Assistant:'."
        )
    return _Conversation(before=text[:start], turns=tuple(turns), asked=asked)
