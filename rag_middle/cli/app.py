"""The commands, put together."""

from __future__ import annotations

import typer

import rag_middle
from rag_middle.cli.ask import ask, chat
from rag_middle.cli.calibrate import calibrate
from rag_middle.cli.console import print_text
from rag_middle.cli.demo import demo
from rag_middle.cli.diagnose import diagnose
from rag_middle.cli.generate import generate
from rag_middle.cli.index import index
from rag_middle.cli.methods import methods
from rag_middle.cli.serve import serve
from rag_middle.cli.verify import verify

app = typer.Typer(
    help="Training-free methods against lost-in-the-middle, for local Hugging Face decoders.",
    epilog="Exit status: 0 done; 1 a verification failed, or who read standard output has ended "
    "(`| head`); 2 refused, with the reason and the next step; 130 stopped by Ctrl-C. More options "
    "than --help shows are in docs/cli.md.",
    no_args_is_help=True,
    rich_markup_mode="markdown",  # which leaves [[rm:doc]] alone, and wraps paragraphs
    pretty_exceptions_enable=False,  # its tracebacks would show prompts
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _command in (ask, calibrate, chat, demo, diagnose, generate, index, methods, serve, verify):
    app.command()(_command)


def _show_version(wanted: bool) -> None:
    if wanted:
        print_text(f"rag-middle {rag_middle.__version__}")
        raise typer.Exit()


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Show the version."
    ),
) -> None:
    pass
