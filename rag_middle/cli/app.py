"""The commands, put together."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from functools import partial
from io import TextIOWrapper
from typing import Annotated, Any, NoReturn, TextIO

import typer
from typer.core import TyperGroup

import rag_middle
from rag_middle.cli.ask import ask
from rag_middle.cli.calibrate import calibrate
from rag_middle.cli.chat import chat
from rag_middle.cli.console import (
    USAGE_ERROR,
    print_json,
    print_text,
    print_traceback,
    printable_logs,
    tell,
)
from rag_middle.cli.demo import demo
from rag_middle.cli.diagnose import diagnose
from rag_middle.cli.generate import generate
from rag_middle.cli.index import index
from rag_middle.cli.methods import methods
from rag_middle.cli.serve import serve
from rag_middle.cli.verify import verify
from rag_middle.files import reason


class _Group(TyperGroup):
    """Tells wrong usage in one line, as other errors; as JSON where ``--json`` was given."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        run = partial(
            super().main, args, prog_name, complete_var, windows_expand_args=windows_expand_args
        )
        for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
            if getattr(sys, name) is None:  # closed by who started the command
                setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, TextIOWrapper):  # names of files may have no encoding
                stream.reconfigure(errors="backslashreplace")
        given = sys.argv[1:] if args is None else args
        if not standalone_mode or not given:  # without arguments, help is shown
            return run(standalone_mode=standalone_mode, **extra)
        try:
            try:
                with printable_logs():
                    status = run(standalone_mode=False, **extra)
            except Exception as error:
                # The exceptions for wrong usage have this method and no public base class.
                format_message = getattr(error, "format_message", None)
                if format_message is None:
                    raise
                _tell_of_usage(" ".join(format_message().split()), as_json="--json" in given)
                status = USAGE_ERROR
            sys.stdout.flush()  # a full disk is told of here, not while Python ends
            sys.exit(status)
        except typer.Abort:  # standard input has ended
            sys.exit(1)
        except OSError as error:
            if not _lost(sys.stdout):
                if _lost(sys.stderr):  # nothing can be said
                    sys.exit(USAGE_ERROR)
                _fail()
            if error.errno == errno.EPIPE:  # whoever read it has read enough
                sys.exit(1)
            tell(
                "Error",
                "bold red",
                f"Standard output cannot be written ({reason(error)}). Free space, or send it "
                "somewhere else.",
            )
            sys.exit(USAGE_ERROR)
        except Exception:
            _fail()


def _fail() -> NoReturn:
    """Show the exception that is being handled; Python's own way shows names as they are."""
    if not sys.stderr.isatty():
        raise
    print_traceback()
    sys.exit(1)


def _tell_of_usage(message: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"error": {"type": "UsageError", "message": message}})
    else:
        ended = message if message.endswith((".", "?")) else f"{message}."
        tell("Error", "bold red", f"{ended} See --help.")


def _lost(stream: TextIO) -> bool:
    """Whether a stream takes nothing any more; what it still holds is thrown away then."""
    try:
        stream.write("\n")  # where nothing is buffered, flushing alone would not fail again
        stream.flush()
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())  # Python flushes it once more when it ends
        os.close(null)
        return True
    return False


app = typer.Typer(
    cls=_Group,
    help="Training-free methods against lost-in-the-middle, for local Hugging Face decoders.",
    epilog="Exit status: 0 done; 1 a verification failed, an answer was expected on standard "
    "input that has ended, or who read standard output has ended (`| head`); 2 refused, with the "
    "reason and the next step; 130 stopped by Ctrl-C.",
    no_args_is_help=True,
    rich_markup_mode="markdown",  # which leaves [[rm:doc]] alone, and wraps paragraphs
    pretty_exceptions_enable=False,  # its tracebacks would show prompts
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(ask)
app.command()(calibrate)
app.command()(chat)
app.command()(demo)
app.command()(diagnose)
app.command()(generate)
app.command()(index)
app.command()(methods)
app.command()(serve)
app.command()(verify)


def _show_version(wanted: bool) -> None:
    if wanted:
        print_text(f"rag-middle {rag_middle.__version__}\n")
        raise typer.Exit()


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    pass
