"""Where an endpoint is, and the key for it.

The key comes from an environment variable and goes into the header of requests. It never becomes
part of a message: what a server says back is searched for it (`without_key`).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any
from urllib.parse import SplitResult, urlsplit

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
    except ValueError:
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
    return map_strings(content, lambda text: text.replace(key, "***"))


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
            begun = range(max(0, end - len(self._key) + 1), end)
            end = next((at for at in begun if self._key.startswith(text[at:])), end)
        self._held = text[end:]
        return text[:end]

    def rest(self) -> str:
        """What was held back, once no more comes."""
        held, self._held = self._held, ""
        return held
