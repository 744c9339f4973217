"""What the commands share: where they write, and how they fail.

Results go to standard output, everything else to standard error. With ``--json`` standard output
holds one JSON document, also where the library refuses what was asked for.
"""

from __future__ import annotations

import json
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rag_middle.errors import RagMiddleError

if TYPE_CHECKING:
    from rich.console import Console

USAGE_ERROR = 2  # what was asked for cannot be done; 1 is for a verification that failed
_PLAIN_WIDTH = 100  # characters, where output goes to no terminal
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
#: Attributes of errors that ``--json`` shows.
_DETAILS = (
    *("parameter", "position", "excerpt"),
    *("prompt_tokens", "max_new_tokens", "context_window"),
)

JsonOption = Annotated[
    bool, typer.Option("--json", help="Write one JSON document to standard output.")
]


def console(*, stderr: bool = False) -> Console:
    """A rich console on standard output or standard error, for which brackets are text."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _PLAIN_WIDTH
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False, width=width)


def print_json(value: Any) -> None:
    """Write one JSON document to standard output."""
    print(json.dumps(value, indent=2, allow_nan=False))  # ASCII, which any terminal takes


def printable(text: str) -> str:
    """`text` with a sign in place of each control character but line ends and tabs.

    Generated and retrieved text could otherwise move the cursor, change colours and titles, or
    write to the clipboard of a terminal.
    """
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def print_text(text: str, *, stderr: bool = False) -> None:
    """Write text to standard output or standard error at once; printable on a terminal."""
    stream = sys.stderr if stderr else sys.stdout
    print(printable(text) if stream.isatty() else text, end="", file=stream, flush=True)


def tell(kind: str, style: str, message: str) -> None:
    """Write a message to standard error, in one line."""
    from rich.text import Text

    line = printable(" ".join(message.splitlines()))
    console(stderr=True).print(Text.assemble((f"{kind}: ", style), line), soft_wrap=True)


def warn(message: str) -> None:
    """Tell of a warning."""
    tell("Warning", "yellow", message)


def quiet_progress_bars() -> None:
    """Keep the bars of transformers off standard error: they count weights, not time."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()


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
            details = {name: getattr(error, name, None) for name in _DETAILS}
            shown = {"type": type(error).__name__, "message": str(error)}
            shown |= {name: value for name, value in details.items() if value is not None}
            print_json({"error": shown})
        else:
            tell("Error", "bold red", str(error))
        raise typer.Exit(USAGE_ERROR) from None
