"""Thinking that a model writes before its answer, in the same text.

Qwen3, DeepSeek-R1 and others write ``<think>...</think>`` first; some templates write the opening
into the prompt; a few have signs of their own. Servers may move it to a field of its own, or leave
it in the text.
"""

from __future__ import annotations

from collections.abc import Callable

#: What thinking begins and ends with.
THINKING = ("<think>", "</think>")
#: The same of models with other signs. Tools and prompts know the first pair alone.
_PAIRS = (
    THINKING,
    ("[THINK]", "[/THINK]"),  # Magistral, Ministral 3
    ("<seed:think>", "</seed:think>"),  # Seed-OSS
    ("<thought>", "</thought>"),  # EXAONE Deep
    ("<|channel|>analysis<|message|>", "<|channel|>final<|message|>"),  # gpt-oss
    ("<|channel>thought", "<channel|>"),  # Gemma 4
)
#: gpt-oss where its control tokens are left out. Either alone may be an answer's own words.
_BARE_CHANNELS = ("analysis", "assistantfinal")


def thinking_of(
    text: str,
    *,
    begun: bool = False,
    find: Callable[[str, int], int] | None = None,
    signs: tuple[str, str] = THINKING,
) -> tuple[bool, int]:
    """The thinking at the beginning of a text, if there is any.

    Args:
        text: what a model wrote.
        begun: the prompt ended within thinking.
        find: finds a marker from an offset on, as `str.find` of the text, which is the default.
        signs: what it begins and ends with.

    Returns:
        Whether the text begins with ``<think>``, or the prompt ended within thinking; and the
        offset after the first ``</think>``, -1 where there is none.
    """
    opener, closer = signs
    find = find or text.find
    first = len(text) - len(text.lstrip())
    end = find(closer, 0)
    stated = begun or find(opener, first) == first
    return stated, end if end < 0 else end + len(closer)


def answer_after_thinking(text: str, *, begun: bool = False) -> str | None:
    """A text without the thinking at its beginning; None where it was cut within that.

    Thinking ends at the first ``</think>``. One without ``<think>`` before it ends thinking too:
    the prompt may have ended within it, which nobody can see from an answer of a server. The same
    holds for the signs of Magistral, Seed-OSS, EXAONE Deep, gpt-oss and Gemma 4.
    """
    signs = THINKING if begun else _signs_of(text)
    stated, end = thinking_of(text, begun=begun, signs=signs)
    if end < 0:
        return None if stated else text
    if not stated and signs[0] in text[:end]:
        return text  # the answer mentions it
    return text[end:].lstrip()


def _signs_of(text: str) -> tuple[str, str]:
    """The signs that a text begins with, else those whose end comes first in it."""
    begin = text.lstrip()
    if begin.startswith(_BARE_CHANNELS[0]) and _BARE_CHANNELS[1] in begin:
        return _BARE_CHANNELS
    for signs in _PAIRS:
        if begin.startswith(signs[0]):
            return signs
    ends = {text.find(signs[1]): signs for signs in _PAIRS}
    ends.pop(-1, None)
    return ends[min(ends)] if ends else THINKING
