"""What the commands share: where they write, and how they fail.

Results go to standard output, everything else to standard error. With ``--json`` standard output
holds one JSON document, also where the library refuses what was asked for.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from rag_middle.errors import RagMiddleError
from rag_middle.small_model import NAME
from rag_middle.wording import counted

if TYPE_CHECKING:
    from rich.console import Console

    from rag_middle.generation import Generation

USAGE_ERROR = 2  # what was asked for cannot be done; 1 is for a verification that failed
_PLAIN_WIDTH = 100  # characters, where output goes to no terminal
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def console(*, stderr: bool = False) -> Console:
    """A rich console on standard output or standard error, for which brackets are text."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _PLAIN_WIDTH
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False, width=width)


def print_json(value: Any) -> None:
    """Write one JSON document to standard output."""
    print(json.dumps(value, indent=2, allow_nan=False))  # ASCII, which any terminal takes


def print_text(text: str, *, end: str = "\n", stderr: bool = False) -> None:
    """Write text to standard output or standard error at once; printable on a terminal."""
    stream = sys.stderr if stderr else sys.stdout
    print(_printable(text) if stream.isatty() else text, end=end, file=stream, flush=True)


def tell(kind: str, message: str, color: str | None = None) -> None:
    """Write a message to standard error; lines after its first are indented."""
    heading = typer.style(f"{kind}: ", fg=color, bold=color is not None)
    typer.echo(heading + _printable("\n  ".join(map(str.strip, message.splitlines()))), err=True)


def warn(message: str) -> None:
    """Tell of a warning."""
    tell("Warning", message, "yellow")


def tell_of_default() -> None:
    """Say on standard error which model answers where none was named."""
    tell("Model", f"{NAME}, a very small one. Name a better one with --model.")


def show_facts(answer: Generation, *, retrieve: float | None = None) -> None:
    """One line about an answer, on standard error; `retrieve`: seconds of finding documents."""
    idle = not answer.applied and answer.method != "none"
    dropped = len(answer.dropped_documents)
    facts = [
        answer.method + (" (changed nothing)" if idle else ""),
        f"{counted(answer.usage.prompt_tokens, 'prompt token')} in "
        f"{counted(answer.documents, 'document')}",
        f"{answer.usage.completion_tokens} generated ({answer.finish_reason})",
        "" if retrieve is None else f"retrieval {retrieve:.2f} s",
        f"time to first token {answer.timings.time_to_first_token:.2f} s",
        f"{answer.tokens_per_second:.1f} tokens/s" if answer.tokens_per_second else "",
        f"{counted(dropped, 'document')} dropped" if dropped else "",
        "" if answer.seed is None else f"seed {answer.seed}",
    ]
    print_text(" · ".join(filter(None, facts)), stderr=True)


def quiet_progress_bars() -> None:
    """Keep the bars of transformers off standard error: they count weights, not time."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()


@contextmanager
def progress_bar(what: str, *, hidden: bool) -> Iterator[Callable[..., None]]:
    """A bar on standard error, at a terminal; yields a function of the numbers done and in all."""
    from rich.progress import MofNCompleteColumn, Progress

    with Progress(
        *Progress.get_default_columns(),
        MofNCompleteColumn(),
        console=console(stderr=True),
        transient=True,
        disable=hidden or not sys.stderr.isatty(),
    ) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total, *_: bar.update(task, total=total, completed=done)


@contextmanager
def reporting(*, as_json: bool, debug: bool) -> Iterator[None]:
    """Turn this package's errors into a message and exit status 2, and warnings into messages.

    Other exceptions are mistakes of the program and keep their traceback.
    """
    try:
        with warnings.catch_warnings():
            # Python's own way shows source code too.
            warnings.showwarning = lambda message, *_, **__: warn(str(message))
            yield
    except RagMiddleError as error:
        if debug:
            raise
        if as_json:
            print_json({"error": {"type": type(error).__name__, "message": str(error)}})
        else:
            tell("Error", str(error), "red")
        raise typer.Exit(USAGE_ERROR) from None


def command_line() -> str:
    """The command under way, to be shown in its report."""
    return shlex.join(["rag-middle", *sys.argv[1:]])


def _printable(text: str) -> str:
    """`text` with a sign in place of each control character but line ends and tabs.

    Generated and retrieved text could otherwise move the cursor, change colours and titles, or
    write to the clipboard of a terminal.
    """
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)
