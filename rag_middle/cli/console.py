"""What the commands share: where they write, and how they fail.

Results go to standard output, everything else to standard error. With ``--json`` standard output
holds exactly one JSON document, also when the command fails.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from rag_middle.errors import ContextOverflowError, MarkerError, RagMiddleError

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["USAGE_ERROR", "DebugOption", "JsonOption", "console", "print_json", "reporting"]

USAGE_ERROR = 2  # what was asked for cannot be done; 1 is for a verification that failed
_PLAIN_WIDTH = 100  # characters, where output goes to no terminal

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


@contextmanager
def reporting(*, as_json: bool, debug: bool) -> Iterator[None]:
    """Turn this package's errors into a message and exit status 2, and warnings into messages.

    Other exceptions are mistakes of the program and keep their traceback.
    """
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            yield
    except RagMiddleError as error:
        if debug:
            raise
        if as_json:
            print_json({"error": _described(error)})
        else:
            _tell("Error", "bold red", str(error))
        raise typer.Exit(USAGE_ERROR) from None


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Stands in for ``warnings.showwarning``, which shows source code too."""
    _tell("Warning", "yellow", str(message))


def _tell(kind: str, style: str, message: str) -> None:
    from rich.text import Text

    text = Text.assemble((f"{kind}: ", style), message)
    console(stderr=True).print(text, soft_wrap=True)


def _described(error: RagMiddleError) -> dict[str, Any]:
    described: dict[str, Any] = {"type": type(error).__name__, "message": str(error)}
    if isinstance(error, MarkerError):
        described |= {"position": error.position, "excerpt": error.excerpt}
    if isinstance(error, ContextOverflowError):
        described |= {
            "prompt_tokens": error.prompt_tokens,
            "max_new_tokens": error.max_new_tokens,
            "context_window": error.context_window,
        }
    return described
