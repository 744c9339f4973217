"""``rag-middle demo``: what position bias is, and what a method does about it."""

from __future__ import annotations

import sys
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rag_middle.cli.asking import RETRIEVAL_PANEL, EmbedderOption, ModelOption
from rag_middle.cli.checks import check_method, check_output_folder
from rag_middle.cli.console import (
    JsonOption,
    console,
    print_json,
    print_text,
    printable,
    quiet_progress_bars,
)
from rag_middle.cli.index import summary
from rag_middle.cli.measuring import command_line, progress_bar
from rag_middle.cli.options import (
    LOADING,
    OUTPUT_PANEL,
    MethodOption,
    MethodOptionsOption,
    command,
    parse_method_options,
    placed,
)
from rag_middle.wording import shortened

if TYPE_CHECKING:
    from rag_middle.demo import Demo, Example
    from rag_middle.evaluation import PositionCurves

__all__ = ["demo"]

_ANSWER_WIDTH = 48  # characters of an answer in a table of the terminal


@command({"documents": "--top-k"}, loading=LOADING)
def demo(
    *,
    model: ModelOption = None,
    method: MethodOption = "pine",
    method_option: MethodOptionsOption = None,
    questions: Annotated[
        int,
        typer.Option(
            min=1, help="How many to measure with, at every position and under every method."
        ),
    ] = 100,
    top_k: Annotated[int, RETRIEVAL_PANEL.option(min=2, help="Documents of a prompt.")] = 20,
    embedder: EmbedderOption = None,
    loading: dict[str, Any],
    out: Annotated[
        Path,
        OUTPUT_PANEL.option(help="Folder for demo.html, demo.png and demo.json."),
    ] = Path("rag-middle-demo"),
    open_page: Annotated[
        bool,
        OUTPUT_PANEL.option("--open", help="Show the page in a browser."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what the position of a document does to answers, and what methods do about it.

    Indexes pages about invented things, answers a few questions from what retrieval finds, with
    the pages in several orders, and measures accuracy by the position of the page that answers,
    the gold document: for the unmodified model, for the method, for pine and for what was fitted to
    the model, as lpes:reader was to the bundled reader, which needs no network and no GPU.
    """
    options = parse_method_options(method_option or ())
    # What can be refused is refused before minutes are spent.
    check_output_folder(out)
    check_method(method, options)
    from rag_middle.demo import Demo, check_demo, findings, write_demonstration
    from rag_middle.evaluation.plots import new_figure

    check_demo(method, options, questions, top_k)
    new_figure()  # without matplotlib there is no picture
    quiet_progress_bars()
    step = _Steps(hidden=as_json or sys.stderr.isatty())
    step("indexing the pages, loading the model")
    started = Demo(
        model,
        method=method,
        method_options=options,
        questions=questions,
        documents=top_k,
        on_index=None if as_json else lambda built: print_text(f"Index: {summary(built)}.\n"),
        embedder=embedder,
        **placed(loading),
    )
    if not as_json:
        _show_start(started)
    step("answering a few questions, their pages in several orders")
    examples = started.examples()
    if not as_json:
        for example in examples:
            _show_example(example)
    step("measuring by the position of the gold document")
    with progress_bar("measuring", hidden=as_json) as progress:
        results = started.measure(step.report if step.shown else progress)
    step("writing the page and the picture")
    demonstration = started.finished(examples, results)
    files = write_demonstration(demonstration, out, command=command_line())
    if as_json:
        paths = {"html": str(files.html), "png": str(files.png), "json": str(files.json)}
        data = {**demonstration.to_dict(), "findings": findings(demonstration), "files": paths}
        print_json(data)
    else:
        _show_curves(demonstration.curves)
        for text in findings(demonstration):
            print_text(f"{text}\n")
        print_text(f"\n{files.png}\n{files.html}\n")
    if open_page:
        webbrowser.open(files.html.resolve().as_uri())


class _Steps:
    """A line on standard error for each step, where no terminal shows bars."""

    _ALL = 4

    def __init__(self, *, hidden: bool) -> None:
        self.shown = not hidden
        self._step = self._quarters = 0

    def __call__(self, what: str) -> None:
        """The next step begins."""
        self._step += 1
        self._print(f"Step {self._step} of {self._ALL}: {what}")

    def report(self, done: int, total: int) -> None:
        """The answers of this step so far, at each quarter."""
        quarters = 4 * done // total
        if quarters > self._quarters:
            self._quarters = quarters
            self._print(f"  {done} of {total} answers")

    def _print(self, line: str) -> None:
        if self.shown:
            print_text(f"{line}\n", stderr=True)


def _show_start(started: Demo) -> None:
    from rag_middle.demo.wording import in_print
    from rag_middle.reader import READER_NAME, TRAINED_DOCUMENTS

    labels = ", ".join(in_print(method.label) for method in started.methods)
    print_text(f"Pages: {started.corpus.pages}\n")
    print_text(
        f"Model: {started.name}. Methods: {labels}. {started.documents} pages in a prompt.\n"
    )
    if started.name == READER_NAME and started.documents > TRAINED_DOCUMENTS:
        print_text(
            f"It was trained on up to {TRAINED_DOCUMENTS}: more show what prompts longer than in "
            "training do to a model.\n"
        )
    for label, reason in started.left_out.items():
        print_text(f"Left out: {label}: {reason}\n")


def _show_example(example: Example) -> None:
    from rich.table import Table
    from rich.text import Text

    from rag_middle.demo.wording import in_print

    print_text(
        f"\n{example.question}\n  right: {example.answer}   page: {example.page}, ranked "
        f"{example.positions[0] + 1} of {example.documents}\n"
    )
    table = Table("method", "answer, pages as retrieved", "", "orders", box=None, pad_edge=True)
    for label, replies in example.replies.items():
        first = replies[0]
        verdict = "right" if first.right else "wrong"
        table.add_row(
            Text(in_print(label)),
            Text(shortened(" ".join(printable(first.text).split()), _ANSWER_WIDTH)),
            Text(verdict, "green" if first.right else "red"),
            Text(
                f"{example.different_answers(label)} different of {len(replies)}, "
                f"{sum(reply.right for reply in replies)} right"
            ),
        )
    console().print(table)


def _show_curves(curves: PositionCurves) -> None:
    from rich.table import Table
    from rich.text import Text

    from rag_middle.demo.wording import in_print

    table = Table("position of the gold document", *map(str, curves.positions), "mean", box=None)
    for curve in curves.curves:
        estimates = (*curve.estimates, curve.mean)
        table.add_row(
            Text(in_print(curve.label)), *(f"{100 * estimate.value:.0f}" for estimate in estimates)
        )
    out = console()
    out.print()
    out.print(table)
    out.print(
        f"Accuracy in %, {curves.questions} questions, {curves.documents} pages in a prompt.\n"
    )
