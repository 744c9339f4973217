"""What the commands share: where they write, and how they fail.

Results go to standard output, everything else to standard error. With ``--json`` standard output
holds exactly one JSON document, also when the command fails.
"""

from __future__ import annotations

import json
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from rag_middle.cli.flags import in_flags
from rag_middle.errors import ContextOverflowError, MarkerError, RagMiddleError

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "USAGE_ERROR",
    "DebugOption",
    "JsonOption",
    "console",
    "print_json",
    "print_text",
    "printable",
    "quiet_progress_bars",
    "reporting",
    "tell",
]

USAGE_ERROR = 2  # what was asked for cannot be done; 1 is for a verification that failed
_PLAIN_WIDTH = 100  # characters, where output goes to no terminal
#: Also the marks that turn the direction of what follows.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")

JsonOption = Annotated[
    bool, typer.Option("--json", help="Write one JSON document to standard output.")
]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")]


def console(*, stderr: bool = False) -> Console:
    """A rich console on standard output or standard error."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, highlight=False, width=None if stream.isatty() else _PLAIN_WIDTH)


def print_json(value: Any) -> None:
    """Write one JSON document to standard output."""
    # ASCII, because a terminal or pipe may have any encoding.
    print(json.dumps(value, indent=2, allow_nan=False))


def printable(text: str) -> str:
    """`text` with a sign in place of each control character but line ends and tabs.

    Generated and retrieved text could otherwise move the cursor, change colours and titles, or
    write to the clipboard of a terminal.
    """
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def print_text(text: str) -> None:
    """Write generated or retrieved text to standard output at once; printable on a terminal."""
    print(printable(text) if sys.stdout.isatty() else text, end="", flush=True)


def quiet_progress_bars() -> None:
    """Keep the bars of transformers off standard error: they count weights, not time."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()


@contextmanager
def reporting(
    *, as_json: bool, debug: bool, flags: Mapping[str, str] | None = None
) -> Iterator[None]:
    """Turn this package's errors into a message and exit status 2, and warnings into messages.

    Other exceptions are mistakes of the program and keep their traceback.

    Args:
        as_json: write the error as JSON.
        debug: let errors through.
        flags: the command's options by the names that messages give them (`flags_of`).
    """

    def show_warning(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        """Stands in for ``warnings.showwarning``, which shows source code too."""
        tell("Warning", "yellow", in_flags(message, flags or {}))

    try:
        with warnings.catch_warnings():
            warnings.showwarning = show_warning
            yield
    except RagMiddleError as error:
        if debug:
            raise
        message = in_flags(error, flags or {})
        if as_json:
            print_json({"error": _described(error, message)})
        else:
            tell("Error", "bold red", message)
        raise typer.Exit(USAGE_ERROR) from None


def tell(kind: str, style: str, message: str) -> None:
    """Write a message to standard error, in one line whatever names in it hold."""
    from rich.text import Text

    message = " ".join(message.splitlines())
    shown = printable(message) if sys.stderr.isatty() else message
    console(stderr=True).print(Text.assemble((f"{kind}: ", style), shown), soft_wrap=True)


def _described(error: RagMiddleError, message: str) -> dict[str, Any]:
    described: dict[str, Any] = {"type": type(error).__name__, "message": message}
    if error.parameter is not None:
        described["parameter"] = error.parameter
    if isinstance(error, MarkerError):
        described |= {"position": error.position, "excerpt": error.excerpt}
    if isinstance(error, ContextOverflowError):
        described |= {
            "prompt_tokens": error.prompt_tokens,
            "max_new_tokens": error.max_new_tokens,
            "context_window": error.context_window,
        }
    return described
