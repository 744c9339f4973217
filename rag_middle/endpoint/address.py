"""Where an endpoint is, and the key for it.

The key comes from an environment variable and goes into the header of requests. It never becomes
part of a message: what a server says back is searched for it (`without_key`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address
from typing import Any
from urllib.parse import SplitResult, urlsplit

import httpx

from rag_middle.errors import EndpointConfigError
from rag_middle.plain_data import map_strings
from rag_middle.wording import Argument

__all__ = [
    "CHECK_ADDRESS",
    "KEY_VARIABLE",
    "Address",
    "KeyStrikeout",
    "api_key",
    "is_local",
    "without_key",
    "without_parts_of_key",
    "without_word",
]

KEY_VARIABLE = "OPENAI_API_KEY"

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_EXAMPLE = Argument("endpoint", "http://localhost:8000/v1")
#: Ends a message about a server whose replies are of no use.
CHECK_ADDRESS = (
    "Is ",
    Argument("endpoint"),
    " the address of an OpenAI-compatible server, with its path (/v1)?",
)
#: Shorter keys are words ("EMPTY", "ollama"), which answers may hold.
_SHORTEST_SECRET = 12  # characters
#: Shorter parts of a key are in many texts.
_SHORTEST_PART = 4  # characters
_LONGEST_SPELLING = 6  # characters of one, as an escape


@dataclass(frozen=True, slots=True)
class Address:
    """An address of an OpenAI-compatible interface.

    Attributes:
        url: without a slash at its end; paths such as ``/chat/completions`` go behind it.
        local: whether it is on this machine.
        encrypted: whether it is https.
    """

    url: str
    local: bool
    encrypted: bool

    @classmethod
    def of(cls, url: str) -> Address:
        """The address that a user wrote; without a path, ``/v1`` is meant.

        Raises:
            EndpointConfigError: it is none of http or https, or holds more than host, port and
                path. The message leaves out what may be a password.
        """
        parts = _split(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise EndpointConfigError(
                Argument("endpoint"),
                " must begin with http:// or https://, such as ",
                _EXAMPLE,
                ".",
            )
        if parts.username is not None or parts.password is not None:
            raise EndpointConfigError(
                Argument("endpoint"),
                " must hold no user name or password: it goes into records and reports. Put the "
                "key into an environment variable and name that with ",
                Argument("api_key_env"),
                ".",
            )
        if parts.query or parts.fragment:
            raise EndpointConfigError(
                Argument("endpoint"),
                " must end with its path: what stands behind ? or # may be a secret, and the "
                "address goes into records and reports.",
            )
        path = parts.path.rstrip("/")
        for resource in ("/chat/completions", "/completions", "/models"):
            if path.endswith(resource):
                raise EndpointConfigError(
                    Argument("endpoint"),
                    f" is the address before {resource}: leave that out, as in ",
                    _EXAMPLE,
                    ".",
                )
        return cls(
            url=f"{parts.scheme}://{parts.netloc}{path or '/v1'}",
            local=is_local(parts.hostname),
            encrypted=parts.scheme == "https",
        )


def _split(url: object) -> SplitResult:
    try:
        if not isinstance(url, str) or any(ord(letter) <= 32 for letter in url):
            raise ValueError
        parts = urlsplit(url)
        _ = parts.port  # raises where it is no number
        _ = httpx.URL(url).host  # and where it is no name of a host
    except (ValueError, httpx.InvalidURL):
        raise EndpointConfigError(
            Argument("endpoint"), " is no web address. Expected one such as ", _EXAMPLE, "."
        ) from None
    return parts


def is_local(host: str) -> bool:
    """Whether a host is this machine, reached by nobody else."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def api_key(variable: str | None, address: Address) -> str | None:
    """The key for an address; None where there is none to be sent.

    Args:
        variable: that holds the key. None for `KEY_VARIABLE` if it is set, unless the key would
            leave this machine unencrypted; ``""`` for no key.

    Raises:
        EndpointConfigError: the variable is not set, or what it holds cannot be a key. The
            message quotes neither: a key may have been given in place of its variable's name.
    """
    if variable == "":
        return None
    if variable is None:
        if not (address.local or address.encrypted):
            return None
        key = os.environ.get(KEY_VARIABLE, "").strip()
        variable = KEY_VARIABLE
        if not key:
            return None
    else:
        if not _VARIABLE.fullmatch(variable):
            raise EndpointConfigError(
                Argument("api_key_env"),
                " takes the name of an environment variable (letters, digits and _), not the key.",
            )
        key = os.environ.get(variable, "").strip()
        if not key:
            raise EndpointConfigError(
                "The environment variable that ",
                Argument("api_key_env"),
                " names is not set: export it, or leave it empty where no key is needed.",
            )
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise EndpointConfigError(
            f"What {variable} holds is no key: it has characters that no HTTP header takes."
        )
    return key


def without_key(content: Any, key: str | None, *, quoted: bool = False) -> Any:
    """JSON-ready data of a server with the key struck out, where it is one.

    Args:
        content: a text, or plain data with texts in it.
        quoted: also strike out short keys, which may be words.
    """
    if key is None or (len(key) < _SHORTEST_SECRET and not quoted):
        return content
    written = _as_written(key)
    return map_strings(content, lambda text: written.sub("***", text))


@lru_cache(maxsize=8)
def _as_written(key: str) -> re.Pattern[str]:
    """The key, any of its characters as an escape of JSON."""
    return re.compile("".join(f"(?:{'|'.join(map(re.escape, _spellings(s)))})" for s in key))


def _spellings(sign: str) -> list[str]:
    """A character of a key as itself, and as the escapes of JSON."""
    numbers = {f"{ord(sign):04x}", f"{ord(sign):04X}"}
    short = [f"\\{sign}"] if sign in '"\\/' else []
    return [*(f"\\u{number}" for number in sorted(numbers)), *short, sign]


def without_word(texts: Sequence[str], key: str | None) -> list[str]:
    """Texts of a message with a short key struck out where it is a word of its own.

    Within words it stays: a key may be a single letter, and messages have words that are not the
    server's.
    """
    if key is None or len(key) >= _SHORTEST_SECRET:
        return list(texts)
    word = re.compile(rf"(?<![^\W_]){re.escape(key)}(?![^\W_])")
    return [word.sub("***", text) for text in texts]


def without_parts_of_key(content: Any, key: str | None) -> Any:
    """JSON-ready data without the parts of a key that its texts make up together.

    A server that says the key in pieces, over several fields, would have it said by a message that
    quotes them. Content that holds less than two thirds of the key stays as it is: names of models
    are in keys, too.
    """
    if key is None or len(key) < _SHORTEST_SECRET:
        return content
    parts = {key[at : at + _SHORTEST_PART] for at in range(len(key) - _SHORTEST_PART + 1)}
    found: set[str] = set()

    def find(text: str) -> str:
        found.update(parts & {text[at : at + _SHORTEST_PART] for at in range(len(text))})
        return text

    map_strings(content, find)
    said = {
        at + index
        for at in range(len(key))
        if key[at : at + _SHORTEST_PART] in found
        for index in range(_SHORTEST_PART)
    }
    if 3 * len(said) < 2 * len(key):
        return content

    def strike(text: str) -> str:
        kept, done = "", 0
        for start, end in _runs(text, parts):
            kept += f"{text[done:start]}***"
            done = end
        return kept + text[done:]

    return map_strings(content, strike)


def _runs(text: str, parts: set[str]) -> Iterator[tuple[int, int]]:
    """Where a text holds parts of a key, those that overlap as one: start and end."""
    start = end = -1
    for at in range(len(text) - _SHORTEST_PART + 1):
        if text[at : at + _SHORTEST_PART] not in parts:
            continue
        if at > end:
            if end >= 0:
                yield start, end
            start = at
        end = at + _SHORTEST_PART
    if end >= 0:
        yield start, end


class KeyStrikeout:
    """Strikes a key out of a text that comes in pieces, over which it may be spread.

    Args:
        key: as in `without_key`.
    """

    def __init__(self, key: str | None) -> None:
        self._key = key
        self._held = ""

    def take(self, piece: str) -> str:
        """What can be handed on: all but an end that may begin the key."""
        text: str = without_key(self._held + piece, self._key)
        end = len(text)
        if self._key is not None and len(self._key) >= _SHORTEST_SECRET:
            begun = range(max(0, end - _LONGEST_SPELLING * len(self._key) + 1), end)
            end = next((at for at in begun if _begins(text[at:], self._key)), end)
        self._held = text[end:]
        return text[:end]

    def rest(self) -> str:
        """What was held back, once no more comes."""
        held, self._held = self._held, ""
        return held


def _begins(text: str, key: str) -> bool:
    """Whether a text is the beginning of the key, with escapes or without."""
    ends = {0}  # where the characters of the key so far may end in the text
    for sign in key:
        after = set()
        for end in ends:
            for spelling in _spellings(sign):
                if spelling.startswith(text[end:]):
                    return True
                if text.startswith(spelling, end):
                    after.add(end + len(spelling))
        if not after:
            return False
        ends = after
    return False
