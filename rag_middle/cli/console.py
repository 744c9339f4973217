"""What the commands share: where they write, and how they fail.

Results go to standard output, everything else to standard error. With ``--json`` standard output
holds exactly one JSON document, also when the command fails.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from typer.models import OptionInfo

from rag_middle.errors import ContextOverflowError, MarkerError, RagMiddleError
from rag_middle.wording import Argument, WordedException

if TYPE_CHECKING:
    from rich.console import Console

USAGE_ERROR = 2  # what was asked for cannot be done; 1 is for a verification that failed
_PLAIN_WIDTH = 100  # characters, where output goes to no terminal
#: Also the marks that turn the direction of what follows.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_COLOUR = re.compile(r"\x1b\[[\d;]*m")

JsonOption = Annotated[
    bool, typer.Option("--json", help="Write one JSON document to standard output.")
]


def console(*, stderr: bool = False) -> Console:
    """A rich console on standard output or standard error, which shows no control characters.

    Names of models, files and labels come from elsewhere too.
    """
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class PrintableConsole(Console):
        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterator[Segment]:
            for segment in super().render(renderable, options):
                text = segment.text if segment.control else printable(segment.text)
                yield Segment(text, segment.style, segment.control)

    stream = sys.stderr if stderr else sys.stdout
    return PrintableConsole(
        stderr=stderr,
        highlight=False,
        markup=False,  # a name in brackets is no style, no link and no error
        emoji=False,
        width=None if stream.isatty() else _PLAIN_WIDTH,
    )


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


def print_text(text: str, *, stderr: bool = False) -> None:
    """Write text to standard output or standard error at once; printable on a terminal.

    Whatever a command writes goes through this, `print_json` or a `console`: answers, documents,
    and names of files hold what others wrote.
    """
    stream = sys.stderr if stderr else sys.stdout
    print(printable(text) if stream.isatty() else text, end="", file=stream, flush=True)


def print_traceback() -> None:
    """Write the exception that is being handled to standard error, printable on a terminal."""
    print_text(traceback.format_exc(), stderr=True)


class _PrintableRecord(logging.LogRecord):
    """A message of a library: transformers names models and quotes their files as they are."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.exc_info and self.exc_info[0]:
            lines = traceback.format_exception(*self.exc_info)
            self.exc_text = printable("".join(lines).rstrip("\n"))  # formatters take it as it is

    def getMessage(self) -> str:  # noqa: N802 - the name is logging's
        message = super().getMessage()
        # Uvicorn escapes what clients send, so its colours stay. Those of other libraries go: a
        # file that a message quotes may have written them.
        is_escaped = self.name.partition(".")[0] == "uvicorn"
        return message if is_escaped else printable(_COLOUR.sub("", message))


@contextmanager
def printable_logs() -> Iterator[None]:
    """Have what libraries log in the block come printable, where it goes to a terminal."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield
        return
    before = logging.getLogRecordFactory()
    logging.setLogRecordFactory(_PrintableRecord)
    try:
        yield
    finally:
        logging.setLogRecordFactory(before)


def show_printably() -> None:
    """Have this process log and warn as the command does that started it, until it ends.

    For a worker, which loads the same model and writes to the same terminal.
    """
    if sys.stderr is None:
        return
    if sys.stderr.isatty():
        logging.setLogRecordFactory(_PrintableRecord)

    def show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
        tell("Warning", "yellow", str(message))

    warnings.showwarning = show_warning


def quiet_progress_bars() -> None:
    """Keep the bars of transformers off standard error: they count weights, not time."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()


@contextmanager
def reporting(*, as_json: bool, debug: bool, flags: Mapping[str, str]) -> Iterator[None]:
    """Turn this package's errors into a message and exit status 2, and warnings into messages.

    Other exceptions are mistakes of the program and keep their traceback.

    Args:
        flags: the command's options by the names that messages give them (`flags_of`).
    """

    def show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
        """Stands in for ``warnings.showwarning``, which shows source code too."""
        tell("Warning", "yellow", in_flags(message, flags))

    try:
        with warnings.catch_warnings():
            warnings.showwarning = show_warning
            _check_working_directory()
            yield
    except RagMiddleError as error:
        if debug:
            raise
        message = in_flags(error, flags)
        if as_json:
            print_json({"error": _described(error, message)})
        else:
            tell("Error", "bold red", message)
        raise typer.Exit(USAGE_ERROR) from None


def _check_working_directory() -> None:
    # Paths could not be made absolute, and PyTorch's mathematics (oneMKL) would end the process.
    try:
        os.getcwd()
    except OSError as error:
        raise RagMiddleError(
            "The working directory was removed. Change to one that is there."
        ) from error


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


def flags_of(command: Callable[..., Any], **others: str) -> dict[str, str]:
    """The options of a command: names of its parameters, and flags.

    Args:
        others: what the library calls something, and the flag for it, where the names differ.
    """
    flags = {}
    for parameter, hint in get_type_hints(command, include_extras=True).items():
        for info in getattr(hint, "__metadata__", ()):
            if isinstance(info, OptionInfo):
                # In Annotated, typer keeps the first of the declarations as the default.
                declared = [info.default, *(info.param_decls or ())]
                spelt = [name.partition("/")[0] for name in declared if isinstance(name, str)]
                flags[parameter] = max(spelt, key=len, default="--" + parameter.replace("_", "-"))
    return {**flags, **others}


def in_flags(message: Exception | str, flags: Mapping[str, str]) -> str:
    """A message in which arguments have the names of options.

    ``on_overflow='drop_documents'`` becomes ``--on-overflow drop_documents``, ``top_p must be`` the
    same of ``--top-p``, and ``rebuild=True`` only ``--rebuild``. An argument that the command has
    no flag for keeps its name.

    Args:
        message: an error or a warning; text is left as it is.
        flags: names of parameters, and what they are here.
    """
    if not isinstance(message, WordedException):
        return str(message)
    return message.worded(partial(_flag, flags=flags))


def _flag(argument: Argument, *, flags: Mapping[str, str]) -> str:
    flag = flags.get(argument.name)
    if flag is None:
        return str(argument)
    return f"{flag} {argument.value}" if argument.has_value and argument.value is not True else flag
