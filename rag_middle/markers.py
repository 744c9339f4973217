"""Text markers around documents in plain strings, and who wrote them.

::

    [[rm:doc:5d0c6b9e1f27a3848c11d2e0]]Paris is the capital of France.[[/rm:doc]]

What stands between the colon and the brackets is a tag: a keyed hash of the text in between. Only
who has the key can mark a text, so markers in a question, an answer or the output of a tool are
ordinary text there. A tag that somebody has seen fits no other text.

The key is drawn when this module is imported; processes that fork share it. Where marked text goes
from one process to another, all of them need the same `MARKER_KEY_VARIABLE` in their environment:
several workers, chat histories and caches that are kept on disk.

Markers are printable ASCII without whitespace, quotes, braces or ``<>&``, so that template engines,
chat histories, caches and traces leave them alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import cache
from hashlib import blake2b
from hmac import compare_digest
from typing import Literal, NamedTuple

from rag_middle.errors import MarkerError, PromptError
from rag_middle.plain_data import whole_characters

#: A document's markers as people write them; `seal` adds a tag to the first one.
OPEN_MARKER = "[[rm:doc]]"
CLOSE_MARKER = "[[/rm:doc]]"
#: Environment variable: the key of several processes.
MARKER_KEY_VARIABLE = "RAG_MIDDLE_MARKER_KEY"

#: What a marked text is: a document, or text that holds none whatever it says.
Kind = Literal["doc", "text"]

# No marker ends in what any begins with, so a marker next to any text ("[", "[[/rm:doc") is found
# where it was put: no occurrence can reach across the edge of another.
_MARKER = re.compile(r"\[\[(?:rm:(doc|text)(?::([0-9a-f]{24}))?|/rm:(doc|text))\]\]")
_LOOK_ALIKE = re.compile(r"\[\[(?=~*/?rm:(?:doc|text))")
_ESCAPED = re.compile(r"\[\[~(?=~*/?rm:(?:doc|text))")
_TAG_BYTES = 12  # a forger would need 2**95 attempts, each of them a request
_SHORTEST_KEY = 32  # characters
_AMPERSANDS = re.compile(r"&(?:amp;)+")
_ENTITIES = re.compile("&(lt|gt|quot|#34|#39|#x27);")
_CHARACTERS = {"lt": "<", "gt": ">", "quot": '"', "#34": '"', "#39": "'", "#x27": "'"}
_EXCERPT_CHARACTERS = 24

# Drawn at once and not when first needed: processes that fork share it.
_OWN_KEY = os.urandom(32)


class Marked(NamedTuple):
    """One marked text, as character offsets; ``start`` and ``end`` include the markers."""

    kind: str
    start: int
    text_start: int
    text_end: int
    end: int


class Marker(NamedTuple):
    """A marker by itself; ``tag`` is that of an opening one, if it has one."""

    kind: str
    tag: str | None
    closes: bool
    start: int
    end: int


def escape(text: str) -> str:
    """Make markers inside ``text`` harmless: ``[[rm:doc]]`` becomes ``[[~rm:doc]]``.

    What already looks escaped gains one more ``~``, so :func:`unescape` gives back the exact text.
    For documents between markers that you write yourself; `mark` does it too.
    """
    return _LOOK_ALIKE.sub("[[~", text)


def unescape(text: str) -> str:
    """Undo :func:`escape`."""
    return _ESCAPED.sub("[[", text)


def seal(text: str, kind: Kind = "doc") -> str:
    """The text, escaped, between markers that only this function can make.

    Half a character (a lone surrogate) becomes U+FFFD: what keeps or sends the text would refuse it
    or write something else, and the tag would fit no longer.

    Raises:
        PromptError: `MARKER_KEY_VARIABLE` is set to something too short.
    """
    escaped = escape(whole_characters(text))
    return f"[[rm:{kind}:{_tag(escaped, kind)}]]{escaped}[[/rm:{kind}]]"


def literal(text: str) -> str:
    """The text so that no document is found in it, whatever it says; mostly as it is."""
    return seal(text, "text") if _LOOK_ALIKE.search(text) else text


def marked_parts(text: str, *, trusted: bool = False) -> tuple[list[Marked], list[Marker]]:
    """What is marked in a text, in order, and the markers that mark nothing.

    Args:
        text: any text.
        trusted: take markers with any tag or none; every marker must then mark something.

    Raises:
        MarkerError: with `trusted`, markers are unbalanced, nested or stray.
        PromptError: as `seal` does.
    """
    # Sealed text is escaped: between its two markers is no other. So only the last opening before a
    # closing can belong to it, and each character is hashed at most once, whoever wrote the text.
    parts: list[Marked] = []
    strays: list[Marker] = []
    opened: Marker | None = None
    for marker in _markers(text):
        if not marker.closes:
            strays += [opened] if opened else []
            opened = marker
            continue
        is_pair = opened is not None and opened.kind == marker.kind
        if opened and is_pair and (trusted or _is_sealed(text, opened, marker)):
            parts.append(Marked(marker.kind, opened.start, opened.end, marker.start, marker.end))
        else:
            strays += [opened, marker] if opened else [marker]
        opened = None
    strays += [opened] if opened else []
    if trusted and strays:
        first = strays[0]
        raise marker_error(
            f"{text[first.start : first.end]} has no partner: a document is opened and never "
            "closed, closed and never opened, or holds another one. Write one marker before and "
            "one after each, check that nothing cut the text short, or wrap documents with "
            "mark(), which escapes markers in their text",
            text,
            first.start,
        )
    return parts, strays


def marker_error(message: str, text: str, position: int) -> MarkerError:
    """The error, with the text around the place."""
    start = max(0, position - _EXCERPT_CHARACTERS)
    excerpt = text[start : position + _EXCERPT_CHARACTERS]
    return MarkerError(message, position=position, excerpt=excerpt)


def _markers(text: str) -> Iterator[Marker]:
    for match in _MARKER.finditer(text):
        opens, tag, closes = match.groups()
        yield Marker(opens or closes, tag, closes is not None, match.start(), match.end())


def _is_sealed(text: str, opened: Marker, closed: Marker) -> bool:
    if opened.tag is None:
        return False
    return compare_digest(opened.tag, _tag(text[opened.end : closed.start], opened.kind))


def _tag(escaped: str, kind: str) -> str:
    content = _without_html_escapes(escaped).encode("utf-8", "surrogatepass")
    person = f"rm:{kind}".encode()
    return blake2b(content, digest_size=_TAG_BYTES, key=marker_key(), person=person).hexdigest()


def _without_html_escapes(text: str) -> str:
    # Mustache templates escape what they fill in. Tags have to outlive that, and cannot be used for
    # more than the same text, HTML-escaped or not. In two passes, however deep somebody nests it.
    if "&" not in text:
        return text
    once = _AMPERSANDS.sub("&", text)
    return _ENTITIES.sub(lambda match: _CHARACTERS[match.group(1)], once)


def marker_key() -> bytes:
    """The key that marks and reads here: of `MARKER_KEY_VARIABLE`, or of this process only.

    Raises:
        PromptError: that variable is set to something too short.
    """
    secret = os.environ.get(MARKER_KEY_VARIABLE)
    return _derived_key(secret) if secret else _OWN_KEY


@cache
def _derived_key(secret: str) -> bytes:
    secret = secret.strip()  # what comes from a file often ends with a line
    if len(secret) < _SHORTEST_KEY:
        raise PromptError(
            f"{MARKER_KEY_VARIABLE} has {len(secret)} characters and needs at least "
            f"{_SHORTEST_KEY}, so that nobody can guess it. Make one with `python -c 'import "
            "secrets; print(secrets.token_hex(32))'`, or unset it for a key of this process only."
        )
    return blake2b(secret.encode("utf-8", "surrogateescape"), digest_size=32).digest()
