"""Files of strangers, parsed by another process within limits of time and memory.

Whatever a file asks for (days, all memory, more calls than a stack holds) ends that process, and
leaves out one file; the next one goes to a new process. A process reads file after file, since to
start it takes a hundred times as long as to read a page of Markdown. One that ends after it read
other files may have ended by what these left behind, so its last file is read again by a new one.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import fields
from types import TracebackType
from typing import Any

from rag_middle.errors import MissingExtraError
from rag_middle.isolation import (
    TooLargeError,
    address_space,
    limit_this_process,
    receive,
    send,
    start_process,
)
from rag_middle.notices import ReadingWarning, warn_caller
from rag_middle.retrieval.formats import READERS, parsed, read_text
from rag_middle.retrieval.records import Record, Skipped

__all__ = ["MOST_SKIPPED", "Reading", "serve"]

MOST_SKIPPED = 1000
"""Wrong lines or pages of one file that are reported one by one; the others are counted."""

#: Of processor time; books need a tenth of it. A PDF with a MiB of text takes a second.
_SECONDS, _SECONDS_PER_MIB = 30.0, 10.0
_WAITING = 10  # times as many seconds by the clock, as other programs use the processors too
#: Bytes, and bytes for each byte of the file. JSON lines of one word take 26, Word documents 24.
_MEMORY, _MEMORY_PER_BYTE = 2**30, 32
_LEFT_MEMORY = 2**28  # bytes that earlier files may still take
#: Bytes of what comes back. Control characters take 6 for each byte of the file, as JSON has them.
_ANSWER, _ANSWER_PER_BYTE = 2**24, 8
_START_SECONDS = 60.0
_END_SECONDS = 10.0  # until a process that has closed its end is gone
_POSSIBLE = os.name == "posix"  # Windows sets no such limits
_OUT_OF_MEMORY = 3  # exit status
_SERVES = __name__  # the module that the process runs
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_FIELDS = [field.name for field in fields(Record) if field.name != "source"]
_TOO_MUCH_MEMORY = "it takes too much memory to read. Split it, or save it as text."


class _EndedError(Exception):
    """The process has ended without an answer; the message says how."""


class Reading:
    """Reads files: plain text here, others in another process, which ends with the block.

    The process is started for the first such file. Where none can be started, files are read here,
    with a `ReadingWarning`; on Windows without one.

    Attributes:
        may_differ: a file was left out for what happened outside of it: another time, it may be
            read.
    """

    def __init__(self) -> None:
        self.may_differ = False
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        self._has_started = False
        self._is_here = not _POSSIBLE

    def __enter__(self) -> Reading:
        """The process is started when it is needed."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """End the process."""
        self._end()

    def read(self, content: bytes, suffix: str, source: str) -> Iterable[Record | Skipped | int]:
        """What a file holds; a number counts wrong lines beyond `MOST_SKIPPED`.

        Args:
            content: of the file.
            suffix: of its name, in lower case.
            source: its name, for records.

        Raises:
            MissingExtraError: its format needs a package that is not installed.
        """
        reason = ""
        for is_new in (self._connection is None, True):
            if self._is_here or READERS[suffix] is read_text:
                return _read_here(content, suffix, source)
            try:
                connection = self._connection or self._start()
                return self._answer(connection, content, suffix, source)
            except OSError as error:
                if not self._has_started:
                    self._is_here = True
                    warn_caller(ReadingWarning(_no_process(error)))
                    continue
                self.may_differ = True
                reason = f"no process can be started to read it ({error}). Try again."
            except _EndedError as error:
                reason = str(error)
            self._end()
            if is_new:
                break
        return [Skipped(source=source, reason=reason)]

    def _start(self) -> socket.socket:
        self._process, self._connection = start_process(_SERVES, quiet=True)
        self._connection.settimeout(_START_SECONDS)
        try:
            receive(self._connection, 0)
        except (OSError, EOFError, TooLargeError) as error:
            self._end()
            raise OSError(f"{sys.executable!r} does not run Python") from error
        self._has_started = True
        return self._connection

    def _answer(
        self, connection: socket.socket, content: bytes, suffix: str, source: str
    ) -> Iterable[Record | Skipped | int]:
        seconds = _SECONDS + _SECONDS_PER_MIB * len(content) / 2**20
        memory = _MEMORY + _MEMORY_PER_BYTE * len(content)
        max_bytes = _ANSWER + _ANSWER_PER_BYTE * len(content)
        connection.settimeout(_WAITING * seconds)
        question = {"suffix": suffix, "source": source, "seconds": seconds, "memory": memory}
        reason = f"reading it takes more than {seconds:.0f} seconds. Split it, or save it as text."
        try:
            send(connection, json.dumps(question).encode())
            send(connection, content)
            answer = json.loads(receive(connection, max_bytes))
        except TooLargeError:
            reason = (
                f"its text has more than {max_bytes / 2**20:.0f} MiB, much more than the file. "
                "Save it as text, or remove it."
            )
        except TimeoutError:
            self.may_differ = True  # by the clock: other programs may have taken the time
        except (OSError, EOFError) as error:
            status = self._status()
            if status != -signal.SIGXCPU:
                self.may_differ |= status == -signal.SIGKILL  # by a system that is short of memory
                raise _EndedError(_ended(status)) from error
        else:
            if "missing" in answer:
                raise MissingExtraError(**answer["missing"])
            return _items(answer, source)
        self._end()
        return [Skipped(source=source, reason=reason)]

    def _status(self) -> int | None:
        """The exit status of the process, None where it still runs."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(_END_SECONDS) if self._process else None
        return None

    def _end(self) -> None:
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = self._connection = None


def _no_process(error: OSError) -> str:
    return (
        f"No process can be started to read documents ({error}): they are read in this one, and "
        "may take its time and memory. Set sys.executable to a Python that has this package."
    )


def _ended(status: int | None) -> str:
    if status == _OUT_OF_MEMORY:
        return _TOO_MUCH_MEMORY
    how = f"exit status {status}"
    with suppress(ValueError):
        how = signal.Signals(-(status or 0)).name
    return (
        f"it ends the process that reads it ({how}): it is damaged, nested too deeply, or takes "
        "too much memory. Save it as text, or remove it."
    )


def _items(answer: dict[str, Any], source: str) -> Iterator[Record | Skipped | int]:
    for item in answer["items"]:
        if len(item) == 2:
            yield Skipped(source=item[0], reason=item[1])
        else:
            record = dict(zip(_FIELDS, item, strict=True))
            headings = tuple((at, words) for at, words in record.pop("headings"))
            yield Record(source=source, headings=headings, **record)
    yield answer["more"]


def _read_here(content: bytes, suffix: str, source: str) -> Iterator[Record | Skipped | int]:
    try:
        yield from parsed(content, suffix, source)
    except MemoryError:
        yield Skipped(source=source, reason=_TOO_MUCH_MEMORY)


# -- in the other process -----------------------------------------------------------------------


def serve() -> None:
    """Read the files that come through standard input, until its other end is closed."""
    with suppress(AttributeError, OSError):  # only Linux has it: others end at their limits
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    connection, used = socket.socket(fileno=0), address_space()
    send(connection, b"")
    with suppress(OSError, EOFError):
        while True:
            question = json.loads(receive(connection))
            memory = question.pop("memory")
            limit_this_process(question.pop("seconds"), None if used is None else used + memory)
            try:
                answer = _answer(receive(connection), **question)
            except MemoryError:
                os._exit(_OUT_OF_MEMORY)
            send(connection, answer)
            if used is not None and (address_space() or 0) > used + _LEFT_MEMORY:
                break  # the next file gets all of its memory, from a new process
    os._exit(0)


def _answer(content: bytes, suffix: str, source: str) -> bytes:
    items: list[list[Any]] = []
    skipped = 0
    try:
        for item in parsed(content, suffix, source):
            if isinstance(item, Record):
                items.append([getattr(item, name) for name in _FIELDS])
                continue
            skipped += 1
            if skipped <= MOST_SKIPPED:
                items.append([item.source, item.reason])
    except MissingExtraError as error:
        missing = {"what": error.what, "package": error.package, "extra": error.extra}
        return json.dumps({"missing": missing}).encode()
    answer = {"items": items, "more": max(skipped - MOST_SKIPPED, 0)}
    # Halves of characters stay apart: as escapes, two of them would be read as one character.
    return json.dumps(answer, ensure_ascii=False).encode("utf-8", "surrogatepass")
