"""Thinking that a model writes before its answer, in the same text.

Qwen3, DeepSeek-R1 and others write ``<think>...</think>`` first; some templates write the opening
into the prompt. Servers may move it to a field of its own, or leave it in the text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["THINKING", "Thinking", "answer_after_thinking", "thinking_of"]

#: What thinking begins and ends with.
THINKING = ("<think>", "</think>")


@dataclass(frozen=True, slots=True)
class Thinking:
    """Of a text, the thinking at its beginning.

    Attributes:
        stated: the text begins with ``<think>``, or the prompt ended within thinking.
        end: the offset behind the first ``</think>``; -1 where there is none.
    """

    stated: bool
    end: int


def thinking_of(
    text: str, *, begun: bool = False, find: Callable[[str, int], int] | None = None
) -> Thinking:
    """The thinking at the beginning of a text, if there is any.

    Args:
        text: what a model wrote.
        begun: the prompt ended within thinking.
        find: finds a marker from an offset on, as `str.find` of the text, which is the default.
    """
    opener, closer = THINKING
    find = find or text.find
    first = len(text) - len(text.lstrip())
    end = find(closer, 0)
    stated = begun or find(opener, first) == first
    return Thinking(stated, end if end < 0 else end + len(closer))


def answer_after_thinking(text: str, *, begun: bool = False) -> str | None:
    """A text without the thinking at its beginning; None where it was cut within that.

    Thinking ends at the first ``</think>``. One without ``<think>`` before it ends thinking too:
    the prompt may have ended within it, which nobody can see from an answer of a server.
    """
    thinking = thinking_of(text, begun=begun)
    if thinking.end < 0:
        return None if thinking.stated else text
    if not thinking.stated and THINKING[0] in text[: thinking.end]:
        return text  # the answer mentions it
    return text[thinking.end :].lstrip()
