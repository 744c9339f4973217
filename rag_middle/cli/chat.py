"""``rag-middle chat``: several questions in a row over one model and one index."""

from __future__ import annotations

import io
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import typer

from rag_middle.cli.asking import (
    ANSWERING,
    OTHER_NAMES,
    QUESTION,
    open_answerer,
    show_facts,
    show_sources,
    stream_text,
)
from rag_middle.cli.console import USAGE_ERROR, flags_of, in_flags, print_text, tell
from rag_middle.cli.endpoint import ENDPOINT
from rag_middle.cli.options import LOADING, command, parse_method_options
from rag_middle.errors import RagMiddleError, RetrievalConfigError
from rag_middle.registry import suggest

if TYPE_CHECKING:
    from rag_middle.answering import Answer, Answerer

_PROMPT = "> "


@command(OTHER_NAMES, answering=ANSWERING, options=QUESTION, loading=LOADING, remote=ENDPOINT)
def chat(
    answering: dict[str, Any],
    options: dict[str, Any],
    loading: dict[str, Any],
    remote: dict[str, Any],
) -> None:
    """Answer questions from documents, one after another.

    Each question stands for itself: earlier ones are not remembered. In between, /sources lists
    the sources of the last answer, /method NAME changes the method, /help lists the commands and
    /quit ends. Ctrl-C cancels an answer. Questions may also come from a file or pipe, one per
    line; exit status 2 if one of them could not be answered.
    """
    answerer, _ = open_answerer(options, loading, quiet=False, remote=remote, **answering)
    session = Chat(answerer, options, flags_of(chat, **OTHER_NAMES))
    session.run(_typed() if sys.stdin.isatty() else _piped())
    if session.failed and not sys.stdin.isatty():
        raise typer.Exit(USAGE_ERROR)


class Chat:
    """Questions and commands, answered one by one.

    Args:
        options: of ``Answerer.stream``.
        flags: as for `in_flags`.

    Attributes:
        failed: whether anything was refused.
    """

    def __init__(self, answerer: Answerer, options: dict[str, Any], flags: dict[str, str]) -> None:
        self.failed = False
        self._ended = False
        self._answerer = answerer
        self._options = options
        self._flags = flags
        self._method = answerer.method
        self._last: Answer | None = None
        self._commands: dict[str, tuple[Callable[[str], None], str]] = {
            "/sources": (self._show_sources, "all sources of the last answer"),
            "/method": (self._change_method, "NAME [OPTION=VALUE ...]: answer under this method"),
            "/help": (self._show_help, "this list"),
            "/quit": (self._quit, "end (so does Ctrl-D)"),
        }

    def run(self, lines: Iterator[str]) -> None:
        """Take lines until they end, or until ``/quit``."""
        for line in lines:
            try:
                if line.startswith("/"):
                    self._command(line)
                else:
                    self._answer(line)
            except KeyboardInterrupt:
                print_text("\n")
                tell("Cancelled", "yellow", "ask something else, or /quit.")
            except RagMiddleError as error:
                self.failed = True
                tell("Error", "bold red", in_flags(error, self._flags))
            if self._ended:
                return

    def _answer(self, question: str) -> None:
        if not sys.stdin.isatty():
            print_text(f"==> {question} <==\n")
        with self._answerer.stream(question, method=self._method, **self._options) as pieces:
            self._last = stream_text(pieces)
        show_sources(self._last.cited)
        show_facts(self._last.generation, retrieve=self._last.timings.retrieve)

    def _command(self, line: str) -> None:
        name, _, rest = line.partition(" ")
        if name not in self._commands:
            raise RetrievalConfigError(
                f"There is no command {name}.{suggest(name, self._commands)} Commands: "
                f"{', '.join(self._commands)}."
            )
        self._commands[name][0](rest.strip())

    def _show_sources(self, rest: str) -> None:
        if self._last is None:
            raise RetrievalConfigError("There is no answer yet whose sources to show: ask first.")
        show_sources(self._last.sources)

    def _change_method(self, rest: str) -> None:
        name, *options = _words(rest)
        self._method = self._answerer.model.checked_method(name, parse_method_options(options))
        tell("Method", "dim", name)

    def _show_help(self, rest: str) -> None:
        for name, (_, meaning) in self._commands.items():
            print_text(f"{name:9} {meaning}\n")

    def _quit(self, rest: str) -> None:
        self._ended = True


def _words(text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise RetrievalConfigError(f"{text!r} cannot be read ({error}): close it.") from error
    if not words:
        raise RetrievalConfigError(
            "/method needs a name, for example /method pine; rag-middle methods lists them."
        )
    return words


def _typed() -> Iterator[str]:
    """Lines from a terminal, with editing and history where there is a readline."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    with suppress(ImportError):  # Windows has none
        import readline  # noqa: F401 - input() uses it once it is imported
    while True:
        try:
            line = input(_PROMPT).strip()
        except EOFError:
            print_text("\n")
            return
        except KeyboardInterrupt:
            print_text("\n/quit or Ctrl-D ends.\n")
            continue
        if line:
            yield line


def _piped() -> Iterator[str]:
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    for line in sys.stdin:
        if line.strip():
            yield line.strip()
