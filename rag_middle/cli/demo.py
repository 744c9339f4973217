"""``rag-middle demo``: what position bias is, and what a method does about it."""

from __future__ import annotations

import webbrowser
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from rag_middle.cli.console import (
    JsonOption,
    console,
    print_json,
    print_text,
    progress_bar,
    quiet_progress_bars,
)
from rag_middle.cli.index import summary
from rag_middle.cli.measuring import command_line
from rag_middle.cli.options import (
    MethodOption,
    MethodOptionsOption,
    ModelOption,
    command,
    loading_options,
    output_flag,
    parse_method_options,
    placed,
    retrieval_flag,
)


@command(loading=loading_options)
def demo(
    *,
    model: ModelOption = None,
    method: MethodOption = "pine",
    method_option: MethodOptionsOption = None,
    questions: Annotated[int, typer.Option(min=2, help="To measure with.")] = 6,
    documents: Annotated[int, typer.Option(min=2, help="Of a prompt in the measurement.")] = 5,
    top_k: Annotated[int, retrieval_flag(min=2, help="Documents of a prompt.")] = 10,
    loading: dict[str, Any],
    out: Annotated[Path, output_flag(help="Folder for demo.html, demo.png and demo.json.")] = Path(
        "rag-middle-demo"
    ),
    open_page: Annotated[bool, output_flag("--open", help="Show the page in a browser.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what the position of a document does to answers, and what a method does about it.

    Indexes 600 passages of Wikipedia, answers three questions from what is found, with the best
    document first and last, unmodified and under the method, and measures a few more questions by
    the position of the passage that answers, the gold document. Beside this small sample it shows
    the full measurement that comes with the package.
    """
    options = parse_method_options(method_option or ())
    from rag_middle.demo import Demo, full_measurement, write_demonstration
    from rag_middle.demo.demonstration import CHOSEN, compared_method
    from rag_middle.evaluation.plots import new_figure

    # What can be refused is refused before minutes are spent.
    compared_method(method, options)
    new_figure()  # without matplotlib there is no picture
    quiet_progress_bars()

    def say(text: str, *, stderr: bool = False) -> None:
        if not as_json:
            print_text(f"{text}\n", stderr=stderr)

    say("\nStep 1 of 4: index 600 passages of Wikipedia, load the model", stderr=True)
    with progress_bar("embedding", hidden=as_json) as embedded:
        started = Demo(
            model,
            method=method,
            method_options=options,
            top_k=top_k,
            on_index=lambda built: say(f"Index: {summary(built)}."),
            progress=embedded,
            **placed(loading),
        )
    say(f"\nStep 2 of 4: three questions answered from {top_k} documents", stderr=True)
    examples = []
    for example in started.examples():
        examples.append(example)
        if not as_json:
            _show_example(example)
    say(f"\n{CHOSEN}")
    say(f"\nStep 3 of 4: {questions} more questions by position", stderr=True)
    with progress_bar("measuring", hidden=as_json) as bar:
        measured = started.measure(questions, documents, progress=bar, command=command_line())
    say("\nStep 4 of 4: page and picture", stderr=True)
    full = full_measurement()
    shown = {"examples": examples, "measured": measured, "full": full}
    files = write_demonstration(shown, out)
    if as_json:
        print_json({**shown, "files": {suffix: str(path) for suffix, path in files.items()}})
    else:
        _show("Measured here, a small sample", measured)
        if full:
            _show("The full measurement, which comes with the package", full)
        say(f"\n{files['png']}\n{files['html']}")
    if open_page:
        webbrowser.open(files["html"].resolve().as_uri())


def _show_example(example: Mapping[str, Any]) -> None:
    from rich.table import Table

    from rag_middle.demo.page import title_of

    print_text(f"\n{example['question']}\n  right: {'; '.join(example['answers'])}\n")
    table = Table("method", "best document", "answer", "has a right one", box=None, pad_edge=True)
    for reply in example["replies"]:
        table.add_row(
            title_of(reply["method"]),
            reply["best"],
            " ".join(reply["text"].split()),
            "yes" if reply["right"] else "no",
        )
    console().print(table)
    titles = "; ".join(str(source["title"]) for source in example["sources"])
    print_text(f"  sources, best first: {titles}\n")


def _show(what: str, measured: Mapping[str, Any]) -> None:
    from rich.table import Table

    from rag_middle.demo.page import in_brackets, title_of

    print_text(
        f"\n{what}: {measured['questions']} questions, {measured['documents']} documents, "
        f"{measured['model']}\nAccuracy in %, log-likelihood of the right answer; 95 % intervals\n"
    )
    positions = measured["curves"][0]["positions"]
    table = Table("", "", *(f"gold at {at}" for at in positions), box=None, pad_edge=True)
    for curve in measured["curves"]:
        for score in ("accuracy", "log_likelihood"):
            cells = [in_brackets(mean, share=score == "accuracy") for mean in curve[score]]
            table.add_row(title_of(curve["label"]), score.replace("_", "-"), *cells)
    console().print(table)
    if difference := measured.get("last_minus_first"):
        print_text(
            "Unmodified, log-likelihood with the gold document last minus first, paired: "
            f"{in_brackets(difference, share=False)}\n"
        )
