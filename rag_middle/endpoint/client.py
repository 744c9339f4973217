"""JSON over HTTP to one server: retries, time limits, replies of bounded size."""

from __future__ import annotations

import json
import random
import re
import threading
import weakref
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from time import monotonic
from typing import Any, TypeVar

import httpx

import rag_middle
from rag_middle.endpoint.address import (
    CHECK_ADDRESS,
    Address,
    KeyStrikeout,
    without_key,
    without_parts_of_key,
    without_word,
)
from rag_middle.endpoint.exchange import Exchange
from rag_middle.errors import (
    EndpointConfigError,
    EndpointError,
    EndpointRefusedError,
    EndpointReplyError,
    EndpointUnreachableError,
)
from rag_middle.plain_data import parse_json
from rag_middle.wording import Argument, shortened

__all__ = ["Client"]

T = TypeVar("T")

_MOST_BYTES = 32 * 2**20  # of a reply, which holds the text of one answer
_CONNECT_SECONDS = 10.0
_FIRST_PAUSE = 0.5  # seconds; doubled from attempt to attempt
_FOREVER = 1e9  # seconds
_LONGEST_PAUSE = 60.0  # seconds; whoever asks for a longer one has run out of quota
#: Codes of errors with which content filters refuse a prompt (Azure, OpenAI, Alibaba).
_FILTER_CODES = (
    *("content_filter", "content_policy_violation", "responsibleaipolicyviolation"),
    *("data_inspection_failed", "datainspectionfailed"),
)
_PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524, 529})
_TOO_LONG = re.compile(r"context.?(length|window)|too (long|many tokens)|max_model_len", re.I)
_ESCAPED = re.compile(r"\\(?:u00([2-7][0-9a-f])|/)", re.I)  # characters that keys are made of
_SAY_LATER = "Run it again later: a run with records goes on where it stopped."


class _Passing(Exception):  # noqa: N818 - never leaves this module
    """An attempt failed in a way that may pass: with which error, and the pause asked for."""

    def __init__(self, error: EndpointError, pause: float | None = None) -> None:
        super().__init__(error)
        self.error = error
        self.pause = pause  # seconds


class Client:
    """Requests to one server, from any number of threads.

    No redirect is followed, so the key reaches no other server. On this machine no proxy is used.

    Args:
        key: sent as a bearer token; None for none.
        timeout: seconds that an attempt may take, from sending to the last byte.
        retries: attempts after the first, where a failure may pass.
    """

    def __init__(
        self,
        address: Address,
        key: str | None,
        *,
        timeout: float,
        retries: int,
    ) -> None:
        self.address = address
        self._key = key
        self._timeout = min(timeout, _FOREVER)
        self._retries = retries
        headers = {
            "User-Agent": f"rag-middle/{rag_middle.__version__}",
            "Accept-Encoding": "identity",  # what is small on the way is small here
        }
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        try:
            self._http = httpx.Client(
                headers=headers,
                timeout=httpx.Timeout(
                    self._timeout, connect=min(timeout, _CONNECT_SECONDS), pool=None
                ),
                # None is kept: processes that are forked would share it, and read each other's
                # answers.
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
                follow_redirects=False,
                verify=httpx.create_ssl_context(),  # with SSL_CERT_FILE, on this machine too
                trust_env=not address.local,
            )
        except (ImportError, OSError, ValueError, httpx.InvalidURL) as error:
            # The others quote addresses of proxies, which hold passwords.
            says_why = isinstance(error, ImportError | OSError)
            reason = shortened(str(error)) if says_why else type(error).__name__
            raise EndpointConfigError(
                "A proxy or a file of certificates that the environment names cannot be used "
                f"({reason}). Look at ALL_PROXY, HTTP_PROXY, HTTPS_PROXY, NO_PROXY, "
                "SSL_CERT_FILE and SSL_CERT_DIR."
            ) from None
        weakref.finalize(self, self._http.close)
        self._answered = False  # whether the server ever did
        self._resume = 0.0  # when requests may be sent again, by the monotonic clock

    def get(self, path: str) -> Any:
        """What the server has at a path, as plain data; errors are those of `post`."""
        return self._attempts(lambda: self._whole("GET", path, None), None)

    def post(
        self,
        path: str,
        body: Mapping[str, Any],
        stopped: threading.Event | None = None,
        failure: Callable[[Any], EndpointError | None] = lambda _: None,
    ) -> Any:
        """The server's reply, as plain data.

        Args:
            stopped: when set, no further attempt is made.
            failure: the error in a reply that may pass when it is asked for again.

        Raises:
            EndpointUnreachableError: there is no connection, or no answer in time.
            EndpointRefusedError: the server refuses, or answers with an error each time.
            EndpointReplyError: the reply is no JSON, or too large.
            EndpointConfigError: the server redirects to another address.
        """

        def replied() -> Any:
            reply = self._whole("POST", path, body)
            if error := failure(reply):
                raise _Passing(error)
            return reply

        return self._attempts(replied, stopped)

    def events(
        self, path: str, body: Mapping[str, Any], stopped: threading.Event
    ) -> Iterator[dict[str, Any]]:
        """The events of a streamed reply, until it ends or `stopped` is set, which cuts it.

        Until the first of them, attempts are repeated as in `post`; errors are the same. That the
        last event has come is for the caller to tell: a connection may end in between.
        """

        def opened() -> Exchange:
            exchange = self._send("POST", path, body, stopped)
            try:
                self._check_status(exchange)
                return exchange
            except BaseException:
                exchange.close()
                raise

        if stopped.is_set():
            return
        try:
            exchange = self._attempts(opened, stopped)
        except EndpointError:
            if stopped.is_set():
                return
            raise
        try:
            for data in _event_data(self._bounded(exchange)):
                if stopped.is_set() or data == b"[DONE]":
                    return
                event = self._parsed(data)
                if isinstance(error := event.get("error"), Mapping):
                    raise EndpointRefusedError(
                        f"{self.address.url} ended an answer with an error: {self._quoted(data)}. "
                        "Ask again; if it stays, look at the server's log.",
                        filtered=_is_filter(str(error.get("code")), str(error.get("message"))),
                    )
                yield event
        except (httpx.TimeoutException, TimeoutError):
            if not stopped.is_set():
                raise self._late() from None
        except httpx.TransportError as error:
            raise EndpointReplyError(
                f"{self.address.url} broke off in the middle of an answer "
                f"({self._reason(error)}). Ask again; if it stays, look at the server's log."
            ) from None
        finally:
            exchange.close()

    def strikeout(self) -> KeyStrikeout:
        """Strikes the key out of one text that comes in pieces."""
        return KeyStrikeout(self._key)

    def without_parts_of_key(self, content: T) -> T:
        """What a server says in several fields, without a key that is spread over them."""
        struck_out: T = without_parts_of_key(content, self._key)
        return struck_out

    @contextmanager
    def errors_without_key(self) -> Iterator[None]:
        """Errors whose messages quote several fields do not say a key that is spread over them."""
        try:
            yield
        except EndpointError as error:
            texts = [part for part in error.parts if isinstance(part, str)]
            struck_out = iter(without_word(self.without_parts_of_key(texts), self._key))
            error.parts = tuple(
                next(struck_out) if isinstance(part, str) else part for part in error.parts
            )
            error.args = ("".join(map(str, error.parts)),)
            raise

    # -- one attempt after the other --------------------------------------------------------------

    def _attempts(self, attempt: Callable[[], T], stopped: threading.Event | None) -> T:
        waiting = stopped or threading.Event()
        for count in range(1, self._retries + 2):
            while (left := self._resume - monotonic()) > 0:
                if waiting.wait(left):
                    break
            try:
                with self._transport_errors():
                    return attempt()
            except _Passing as failure:
                pause = failure.pause
                if count > self._retries or waiting.is_set():
                    raise _after(failure.error, count) from None
                if pause is None:
                    # Drawn, so that requests that failed together do not come back together.
                    pause = _FIRST_PAUSE * 2 ** (count - 1) * random.uniform(0.5, 1.0)
                elif pause > _LONGEST_PAUSE:
                    raise _after(failure.error, count, pause) from None
                else:
                    self._resume = max(self._resume, monotonic() + pause)
                if waiting.wait(min(pause, _LONGEST_PAUSE)):
                    raise _after(failure.error, count) from None
        raise AssertionError("the last attempt returns or raises")

    @contextmanager
    def _transport_errors(self) -> Iterator[None]:
        url = self.address.url
        try:
            yield
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            unreachable = EndpointUnreachableError(
                f"There is no connection to {url} ({self._reason(error)}). Is the server running, "
                "and is ",
                Argument("endpoint"),
                " its address?",
            )
            # A server that is being restarted comes back; one that was never there does not.
            if self._answered:
                raise _Passing(unreachable) from None
            raise unreachable from None
        except (httpx.TimeoutException, TimeoutError):
            raise _Passing(self._late()) from None
        except httpx.TransportError as error:
            raise _Passing(
                EndpointUnreachableError(
                    f"The connection to {url} broke ({self._reason(error)}). Look at the "
                    "server's log."
                )
            ) from None
        except httpx.HTTPError as error:
            raise EndpointReplyError(
                f"The reply of {url} cannot be read ({self._reason(error)}). ",
                *CHECK_ADDRESS,
            ) from None

    def _late(self) -> EndpointUnreachableError:
        return EndpointUnreachableError(
            f"{self.address.url} did not answer within {self._timeout:g} seconds. Allow more with ",
            Argument("timeout"),
            ", or send fewer requests at a time.",
        )

    # -- one request ------------------------------------------------------------------------------

    def _send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        stopped: threading.Event | None = None,
    ) -> Exchange:
        content = None if body is None else json.dumps(body).encode()
        request = self._http.build_request(
            method,
            self.address.url + path,
            content=content,
            headers={} if content is None else {"Content-Type": "application/json"},
        )
        exchange = Exchange(self._http, request, self._timeout, stopped)
        self._answered = True
        return exchange

    def _whole(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        exchange = self._send(method, path, body)
        try:
            self._check_status(exchange)
            return self._parsed(b"".join(self._bounded(exchange)))
        finally:
            exchange.close()

    def _bounded(self, exchange: Exchange) -> Iterator[bytes]:
        encoding = exchange.response.headers.get("content-encoding", "identity").strip()
        if encoding.lower() not in ("", "identity"):
            raise EndpointReplyError(
                f"{self.address.url} sends answers packed ({self._quoted(encoding)}), which it was "
                "asked not to do. Turn compression off in front of that server. ",
                *CHECK_ADDRESS,
            )
        size = 0
        for chunk in exchange.content():
            size += len(chunk)
            if size > _MOST_BYTES:
                raise EndpointReplyError(
                    f"{self.address.url} sent more than {_MOST_BYTES // 2**20} MiB for one "
                    "answer. ",
                    *CHECK_ADDRESS,
                )
            yield chunk

    def _parsed(self, content: bytes) -> dict[str, Any]:
        try:
            parsed = without_key(
                parse_json(content, repeated_keys=True, replaces_halves=True), self._key
            )
        except (ValueError, RecursionError) as error:
            raise EndpointReplyError(
                f"{self.address.url} sent something else than JSON ({error}): "
                f"{self._quoted(content)}. ",
                *CHECK_ADDRESS,
            ) from None
        if not isinstance(parsed, dict):
            raise EndpointReplyError(
                f"{self.address.url} sent no JSON object: {self._quoted(content)}. ",
                *CHECK_ADDRESS,
            )
        return parsed

    def _check_status(self, exchange: Exchange) -> None:
        response = exchange.response
        status, url = response.status_code, self.address.url
        if 200 <= status < 300:
            return
        if 300 <= status < 400:
            # The key must not follow, and a POST would become a GET.
            target = self._struck_out(response.headers.get("location", "")).partition("?")[0]
            raise EndpointConfigError(
                f"{url} sends requests on to {shortened(target)!r}. No redirect is "
                "followed, as the key would go along: name that address with ",
                Argument("endpoint"),
                " if you trust it.",
            )
        said, code = self._complaint(exchange)
        if status in _PASSING and code != "insufficient_quota":
            raise _Passing(
                EndpointRefusedError(f"{url} answers with status {status}{said}.", status=status),
                _pause_asked_for(response.headers),
            )
        steps: tuple[str | Argument, ...] = ("Check the options against what that server takes.",)
        if status in (401, 403):
            steps = (
                f"{'The key was refused' if self._key else 'No key was sent'}: put a valid one "
                "into an environment variable and name that with ",
                Argument("api_key_env"),
                ".",
            )
        elif status == 404:
            steps = (
                "Check ",
                Argument("model"),
                " and the path of ",
                Argument("endpoint"),
                ", which mostly ends in /v1.",
            )
        elif code == "insufficient_quota":
            steps = (_SAY_LATER,)
        elif _TOO_LONG.search(said):
            steps = ("Send fewer or shorter documents, or raise the server's context window.",)
        elif "chat template" in said.lower():
            steps = ("Send prompts as they are with ", Argument("template", "raw"), ".")
        raise EndpointRefusedError(
            f"{url} refuses the request (status {status}){said}. ",
            *steps,
            status=status,
            filtered=_is_filter(code, said),
        )

    def _complaint(self, exchange: Exchange) -> tuple[str, str]:
        """What an error reply says, as it goes into a message; and its code, if it has one."""
        content = b""
        for chunk in self._bounded(exchange):
            content += chunk
            if len(content) > 2**16:
                break
        try:
            error = parse_json(content, repeated_keys=True)
        except ValueError:
            error = None
        if isinstance(error, Mapping):
            error = error.get("error", error)
        code = ""
        if isinstance(error, Mapping):
            code = str(error.get("code") or "")
            error = error.get("message", error.get("detail", error))
        said = self._quoted(content if error is None else str(error))
        return (f": {said}" if content.strip() else ""), code

    def _quoted(self, content: str | bytes) -> str:
        """A server's words, short and in one line, without the key."""
        text = content if isinstance(content, str) else content.decode("utf-8", "replace")
        # JSON may write any character of the key as an escape, and many servers / as \/.
        text = _ESCAPED.sub(lambda match: chr(int(match[1], 16)) if match[1] else "/", text)
        return repr(shortened(" ".join(self._struck_out(text).split())))

    def _reason(self, error: Exception) -> str:
        """Why a connection failed: the words of httpx, which may quote the server's."""
        text = " ".join(self._struck_out(str(error)).split())
        return shortened(text) or type(error).__name__

    def _struck_out(self, text: str) -> str:
        struck_out: str = without_key(text, self._key, quoted=True)
        return struck_out


def _event_data(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """The data of server-sent events, of one line or several.

    What is whole on its first line is an event already: some servers leave out the empty line.
    """
    parts: list[bytes] = []
    for at, line in enumerate(_lines(chunks)):
        if at == 0:
            line = line.removeprefix(BOM_UTF8)
        if line.startswith(b"data:"):
            parts.append(line[5:].strip())
            if len(parts) > 1 or not _is_whole(parts[0]):
                continue
        if parts and (not line or line.startswith(b"data:")):
            yield b"\n".join(parts)
            parts = []


def _is_whole(data: bytes) -> bool:
    if data == b"[DONE]":
        return True
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True


def _lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Lines that end by LF, CR or both; one without an end was cut off."""
    begun: list[bytes] = []  # pieces of a line: put together with each, a long one takes hours
    for chunk in chunks:
        begun.append(chunk)
        if b"\n" in chunk or b"\r" in chunk or begun[0].endswith(b"\r"):
            # LF may be still to come after CR.
            *lines, rest = re.split(rb"\r\n|\n|\r(?!\Z)", b"".join(begun))
            yield from lines
            begun = [rest]
    if begun and begun[-1].endswith(b"\r"):
        yield b"".join(begun)[:-1]


def _is_filter(code: str, said: str) -> bool:
    """Whether a server's error comes from its content filter."""
    if code == "invalid_prompt":  # OpenAI's, with: violates our usage policy
        return "policy" in said
    return code.lower() in _FILTER_CODES


def _pause_asked_for(headers: httpx.Headers) -> float | None:
    """Seconds of ``Retry-After`` (a number, or a date); None where it says nothing."""
    value = headers.get("retry-after", "")
    try:
        seconds = float(value)
    except ValueError:
        try:
            at = parsedate_to_datetime(value)
        except (ValueError, TypeError, OverflowError):
            return None
        at = at if at.tzinfo else at.replace(tzinfo=UTC)
        seconds = (at - datetime.now(UTC)).total_seconds()
    return min(max(0.0, seconds), _FOREVER) if seconds == seconds else None  # NaN is no pause


def _after(error: EndpointError, attempts: int, pause: float | None = None) -> EndpointError:
    """The error of the last attempt, with the number of attempts and what to do."""
    failed = f" It failed {attempts} times in a row." if attempts > 1 else ""
    asked = "" if pause is None else f" It asks to wait {pause:,.0f} seconds."
    parts = (*error.parts, f"{failed}{asked} {_SAY_LATER}")
    if isinstance(error, EndpointRefusedError):
        return EndpointRefusedError(*parts, status=error.status, filtered=error.filtered)
    return type(error)(*parts)
