"""The engine of constrained decoding, in this process or in one of its own.

llguidance recurses, counts and allocates as forms ask of it: one may end the process, or not come
back. Forms of strangers are therefore compiled and followed by a process for each of them, forked
from one that has the vocabulary, within limits of time and memory.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Sequence
from importlib import import_module
from time import monotonic
from typing import Any, NamedTuple, Protocol
from weakref import finalize

from rag_middle.isolation import address_space, limit_this_process, receive, send, start_process

__all__ = ["Engine", "EngineError", "Form", "Here", "Isolated", "Texts", "Vocabulary"]

#: Of what the engine builds for a pattern, such as `(.{1,50} ?){50}`; lists of thousands of values
#: and long texts stay far below these. A step of an ambiguous grammar takes time by the square of
#: its items: 50,000 are ten seconds.
_LIMITS = {
    "initial_lexer_fuel": 200_000,
    "step_lexer_fuel": 100_000,
    "step_max_items": 10_000,
    "max_lexer_states": 20_000,
    "max_items_in_row": 4_000,  # four for each optional property of an object, which has 1,000
}
#: After every grammar: whatever goes on towards the form stays possible. The engine would else
#: write text without a choice as the tokenizer splits it: with control tokens where their names
#: stand there, with other characters where it normalises (NFC).
_EVERY_SPLIT = '\n%llguidance {"no_forcing": true}'
#: What the engine says where an answer cannot go on, and in other words.
_ENDS = {
    "NoExtensionBias": "nothing satisfies the form, or nothing that begins as this answer does",
    "Parser Error: Current row has": "the form has more than 4,000 ways to go on at one place: too "
    "many optional properties or alternatives",
}
_START_SECONDS = 120.0  # to load the engine and a vocabulary
_STEP_SECONDS = 2.0  # of a processor, to compile a form or to follow one token
_PROCESSOR_SECONDS = 60  # of a form, all together
_WAIT_SECONDS = 60.0  # for a step, where others have the processors
_MEMORY = 1 << 30  # that a form may take, bytes
_REFUSED_SECONDS = 60.0  # a form that took the engine too far: requests for one come together


class EngineError(Exception):
    """The engine refuses a form, or failed at it; says why."""


class _EndedError(EngineError):
    """The process of a form has ended."""

    def __init__(self) -> None:
        super().__init__(
            "it takes the engine too deep, more than a GiB of memory, or more than "
            f"{_STEP_SECONDS:g} seconds at once"
        )


class Vocabulary(NamedTuple):
    """What a model writes with.

    Attributes:
        tokenizer: the JSON of a fast tokenizer.
        entries: tokens.
        ends: those that end a text.
    """

    tokenizer: str
    entries: int
    ends: Sequence[int]


class Texts(Protocol):
    """Texts that are written in one form."""

    def read(self, tokens: Sequence[Sequence[int] | None]) -> list[bool]:
        """Go on by each text's new tokens; says which texts have ended.

        Args:
            tokens: of each text; None of one that ends here, complete or not.

        Raises:
            EngineError: the engine failed.
        """
        ...

    def allowed(self) -> list[bytes | None]:
        """One byte per token for each text, 0 where it cannot come next; None of ended ones.

        Raises:
            EngineError: the engine failed.
        """
        ...


class Form(Protocol):
    """A compiled grammar."""

    def begin(self, texts: int) -> Texts:
        """So many texts at their beginning."""
        ...


class Engine(Protocol):
    """A vocabulary, and what compiles grammars for it."""

    def compile(self, grammar: str) -> Form:
        """A grammar in the Lark dialect of llguidance.

        Raises:
            EngineError: it is wrong, or takes the engine too far.
        """
        ...


class Here:
    """The engine in this process."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._library = import_module("llguidance")
        self._ends = vocabulary.ends
        try:
            self._vocabulary = self._library.LLTokenizer(
                vocabulary.tokenizer, n_vocab=vocabulary.entries, eos_token=list(vocabulary.ends)
            )
        except ValueError as error:
            raise EngineError(
                "the engine reads tokenizers with byte-level or byte-fallback decoders, and "
                f"{error}"
            ) from error

    def compile(self, grammar: str) -> _FormHere:
        """As `Engine` says."""
        try:
            written = self._library.LLMatcher.grammar_from_lark(grammar + _EVERY_SPLIT)
            limits = self._library.LLParserLimits(**_LIMITS)
            matcher = self._library.LLMatcher(self._vocabulary, written, log_level=0, limits=limits)
        except UnicodeEncodeError as error:  # half of a surrogate pair
            raise EngineError(f"it is no text: {error}") from error
        _check(matcher)
        return _FormHere(matcher, self._ends)


class _FormHere:
    def __init__(self, first: Any, ends: Sequence[int]) -> None:
        self._first = first
        self._ends = ends

    def begin(self, texts: int) -> _TextsHere:
        return _TextsHere([self._first.deep_copy() for _ in range(texts)], self._ends)


class _TextsHere:
    def __init__(self, matchers: list[Any], ends: Sequence[int]) -> None:
        self._matchers: list[Any | None] = [*matchers]
        self._ends = ends

    def read(self, tokens: Sequence[Sequence[int] | None]) -> list[bool]:
        for index, new in enumerate(tokens):
            matcher = self._matchers[index]
            if matcher is None or new is None:
                self._matchers[index] = None
                continue
            for token in new:
                if not matcher.is_stopped():  # a finished row is filled with padding
                    matcher.consume_token(token)
            _check(matcher)
        return [matcher is None or matcher.is_stopped() for matcher in self._matchers]

    def allowed(self) -> list[bytes | None]:
        return [
            None if matcher is None or matcher.is_stopped() else self._allowed(matcher)
            for matcher in self._matchers
        ]

    def _allowed(self, matcher: Any) -> bytes:
        mask = bytearray(matcher.compute_logit_bias())
        _check(matcher)  # before other texts take as long
        if not matcher.is_accepting():  # an end may be text as well
            for end in self._ends:
                mask[end] = 0
            if not any(mask):
                raise EngineError(
                    "the form can go on with no token but a token that ends answers. Pass other "
                    "ones as eos_token_id"
                )
        return bytes(mask)


def _check(matcher: Any) -> None:
    if matcher.is_error():
        said = str(matcher.get_error()).splitlines()[0]
        plain = (words for beginning, words in _ENDS.items() if said.startswith(beginning))
        raise EngineError(next(plain, said))


class Isolated:
    """The engine in processes that may end, each with one form."""

    #: Whether this system has what it takes.
    possible = hasattr(os, "fork") and hasattr(socket, "send_fds")

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._lock = threading.Lock()
        self._control: socket.socket | None = None
        self._too_far: dict[str, float] = {}

    def compile(self, grammar: str) -> _FormElsewhere:
        """As `Engine` says."""
        now = monotonic()
        self._too_far = {form: until for form, until in self._too_far.items() if until > now}
        if grammar in self._too_far:
            raise _EndedError
        ours, theirs = socket.socketpair()
        form = _FormElsewhere(ours)
        with theirs:
            self._hand_over(theirs)
        try:
            form.ask({"compile": grammar})
        except _EndedError:
            self._too_far[grammar] = monotonic() + _REFUSED_SECONDS
            raise
        return form

    def _hand_over(self, connection: socket.socket) -> None:
        """Give a connection to a new process."""
        with self._lock:
            for _ in range(2):  # the process that forks may have been ended
                if self._control is None:
                    self._control = self._started()
                try:
                    socket.send_fds(self._control, [b"\0"], [connection.fileno()])
                except OSError:
                    self._control.close()
                    self._control = None
                else:
                    return
        raise EngineError("its process ends whenever it is started")

    def _started(self) -> socket.socket:
        """The connection to a process that forks."""
        try:
            process, ours = start_process(__name__, quiet=False)
        except OSError as error:
            raise EngineError("its process cannot be started") from error
        threading.Thread(target=process.wait, daemon=True).start()
        ours.settimeout(_START_SECONDS)
        try:
            send(ours, json.dumps(self._vocabulary).encode())
            refusal = receive(ours).decode()
        except (OSError, EOFError) as error:
            process.kill()
            ours.close()
            raise EngineError("its process cannot be started") from error
        if refusal:
            ours.close()
            raise EngineError(refusal)
        finalize(self, ours.close)
        return ours


class _FormElsewhere:
    """A form in a process that ends with this object, or when it is too much."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(_WAIT_SECONDS)
        self._connection = connection
        finalize(self, connection.close)

    def begin(self, texts: int) -> _TextsElsewhere:
        return _TextsElsewhere(self, self.ask({"begin": texts})["number"], texts)

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """What the process answers.

        Raises:
            EngineError: it says so, and ends, or has ended.
        """
        try:
            send(self._connection, json.dumps(question).encode())
        except OSError as error:
            raise _EndedError from error
        answer: dict[str, Any] = json.loads(self.block())
        if "error" in answer:
            self._connection.close()  # a traceback may hold this object for long
            raise EngineError(answer["error"])
        return answer

    def block(self) -> bytes:
        """The next that it sends.

        Raises:
            EngineError: it has ended.
        """
        try:
            return receive(self._connection)
        except (OSError, EOFError) as error:
            self._connection.close()
            raise _EndedError from error


class _TextsElsewhere:
    def __init__(self, form: _FormElsewhere, number: int, texts: int) -> None:
        self._form = form
        self._number = number
        self._stopped = [False] * texts

    def read(self, tokens: Sequence[Sequence[int] | None]) -> list[bool]:
        news = zip(tokens, self._stopped, strict=True)
        if any(new != [] and not is_stopped for new, is_stopped in news):
            answer = self._form.ask({"read": self._number, "tokens": tokens})
            self._stopped = answer["stopped"]
        return self._stopped

    def allowed(self) -> list[bytes | None]:
        stopped = self._form.ask({"allowed": self._number})["stopped"]
        return [None if is_stopped else self._form.block() for is_stopped in stopped]


def serve() -> None:
    """Read a vocabulary, and give every connection that follows to a process of its own."""
    control = socket.socket(fileno=0)
    try:
        engine = Here(Vocabulary(*json.loads(receive(control))))
    except EngineError as error:
        send(control, str(error).encode())
        return
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    send(control, b"")
    while True:
        _, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not descriptors:
            return
        connection = socket.socket(fileno=descriptors[0])
        if os.fork():
            connection.close()
            continue
        try:
            control.close()
            used = address_space()
            limit_this_process(_PROCESSOR_SECONDS, None if used is None else used + _MEMORY)
            _answer(engine, connection)
        finally:
            os._exit(0)


def _answer(engine: Here, connection: socket.socket) -> None:
    """Compile a form and follow its texts, until the other end is closed."""
    forms: list[Form] = []
    texts: list[Texts] = []
    while True:
        try:
            question = json.loads(receive(connection))
        except (OSError, EOFError):
            return
        signal.setitimer(signal.ITIMER_PROF, _STEP_SECONDS)  # whose signal ends the process
        answer: dict[str, Any] = {}
        masks: list[bytes | None] = []
        try:
            if "compile" in question:
                forms.append(engine.compile(question["compile"]))
            elif "begin" in question:
                texts.append(forms[0].begin(question["begin"]))
                answer["number"] = len(texts) - 1
            elif "read" in question:
                answer["stopped"] = texts[question["read"]].read(question["tokens"])
            else:
                masks = texts[question["allowed"]].allowed()
                answer["stopped"] = [mask is None for mask in masks]
        except EngineError as error:
            answer["error"] = str(error)
        signal.setitimer(signal.ITIMER_PROF, 0)
        send(connection, json.dumps(answer).encode())
        for mask in masks:
            if mask is not None:
                send(connection, mask)
