"""``rag-middle chat``: several questions in a row over one model and one index."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import typer

from rag_middle.cli.ask import (
    QUESTION,
    answering_options,
    open_answerer,
    show_sources,
    stream_text,
)
from rag_middle.cli.console import USAGE_ERROR, print_text, show_facts, tell
from rag_middle.cli.options import (
    command,
    endpoint_options,
    loading_options,
    parse_method_options,
)
from rag_middle.errors import ConfigError, RagMiddleError
from rag_middle.options import GenerationOptions
from rag_middle.registry import suggest

if TYPE_CHECKING:
    from rag_middle.answering import Answer

_COMMANDS = {
    "/sources": "all sources of the last answer",
    "/method": "NAME [OPTION=VALUE ...]: answer under this method",
    "/help": "this list",
    "/quit": "end (so does Ctrl-D)",
}


@command(
    answering=answering_options, options=QUESTION, loading=loading_options, remote=endpoint_options
)
def chat(
    answering: dict[str, Any],
    options: dict[str, Any],
    loading: dict[str, Any],
    remote: dict[str, Any],
) -> None:
    """Answer questions from documents, one after another.

    Each question stands for itself. In between, /sources lists the sources of the last answer,
    /method NAME changes the method, /help lists the commands and /quit ends. Questions may also
    come from a file or pipe, one per line; exit status 2 if one could not be answered.
    """
    GenerationOptions(**options)  # refused before anything is indexed
    answerer, _ = open_answerer(loading, quiet=False, remote=remote, **answering)
    method = answerer.method
    last: Answer | None = None
    failed, is_typed = False, sys.stdin.isatty()
    for line in _typed() if is_typed else filter(None, map(str.strip, sys.stdin)):
        name, _, rest = line.partition(" ")
        try:
            if name == "/quit":
                break
            if name == "/help":
                print_text("".join(f"{name:9} {does}\n" for name, does in _COMMANDS.items()))
            elif name == "/sources":
                if last is None:
                    raise ConfigError("There is no answer yet whose sources to show: ask first.")
                show_sources(last.sources)
            elif name == "/method":
                chosen, *given = _words(rest)
                method = answerer.model.checked_method(chosen, parse_method_options(given))
                tell("Method", "dim", chosen)
            elif name.startswith("/"):
                raise ConfigError(
                    f"There is no command {name}.{suggest(name, _COMMANDS)} Commands: "
                    f"{', '.join(_COMMANDS)}."
                )
            else:
                if not is_typed:
                    print_text(f"==> {line} <==\n")
                with answerer.stream(line, method=method, **options) as pieces:
                    last = stream_text(pieces)
                show_sources(last.cited)
                show_facts(last.generation, retrieve=last.timings.retrieve)
        except RagMiddleError as error:
            failed = True
            tell("Error", "bold red", str(error))
    if failed and not is_typed:
        raise typer.Exit(USAGE_ERROR)


def _words(text: str) -> list[str]:
    with suppress(ValueError):  # a quotation mark that is not closed
        if words := shlex.split(text):
            return words
    raise ConfigError(
        f"{text!r} cannot be read: /method needs a name, for example /method pine; "
        "rag-middle methods lists them."
    )


def _typed() -> Iterator[str]:
    """Lines from a terminal, with editing and history where there is a readline."""
    with suppress(ImportError):  # Windows has none
        import readline  # noqa: F401 - input() uses it once it is imported
    with suppress(EOFError):
        while True:
            if line := input("> ").strip():
                yield line
