"""``rag-middle demo``: what position bias is, and what a method does about it."""

from __future__ import annotations

import webbrowser
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from rag_middle.cli.console import (
    JsonOption,
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
    questions: int = typer.Option(6, min=2, help="To measure with."),
    documents: int = typer.Option(5, min=2, help="Of a prompt in the measurement."),
    top_k: int = retrieval_flag(10, min=2, help="Documents of a prompt."),
    loading: dict[str, Any],
    out: Path = output_flag(
        Path("rag-middle-demo"), help="Folder for demo.html, demo.png and demo.json."
    ),
    open_page: bool = output_flag(False, "--open", help="Show the page in a browser."),
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
    from rag_middle.demo.demonstration import CHOSEN
    from rag_middle.evaluation.plots import new_figure

    new_figure()  # without matplotlib there is no picture: said before minutes are spent
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
        say(_example_text(example))
    say(f"\n{CHOSEN}")
    say(f"\nStep 3 of 4: {questions} more questions by position", stderr=True)
    with progress_bar("measuring", hidden=as_json) as bar:
        measured = started.measure(questions, documents, progress=bar, command=command_line())
    say("\nStep 4 of 4: page and picture", stderr=True)
    full = full_measurement()
    shown = {"examples": examples, "measured": measured, "full": full}
    files = write_demonstration(shown, out)
    say(_measurement_text("Measured here, a small sample", measured))
    if full:
        say(_measurement_text("The full measurement, which comes with the package", full))
    say(f"\n{files['png']}\n{files['html']}")
    if as_json:
        print_json({**shown, "files": {suffix: str(path) for suffix, path in files.items()}})
    if open_page:
        webbrowser.open(files["html"].resolve().as_uri())


def _example_text(example: Mapping[str, Any]) -> str:
    from rag_middle.demo.page import title_of

    lines = [f"\n{example['question']}", f"  right: {'; '.join(example['answers'])}"]
    for reply in example["replies"]:
        verdict = "right" if reply["right"] else "wrong"
        text = " ".join(reply["text"].split())
        where = f"{title_of(reply['method'])}, best document {reply['best']}"
        lines.append(f"  {where}: {text} [{verdict}]")
    titles = "; ".join(str(source["title"]) for source in example["sources"])
    return "\n".join([*lines, f"  sources, best first: {titles}"])


def _measurement_text(what: str, measured: Mapping[str, Any]) -> str:
    from rag_middle.demo.page import in_brackets, title_of

    lines = [
        f"\n{what}: {measured['questions']} questions, {measured['documents']} documents, "
        f"{measured['model']}",
        "Accuracy in %, log-likelihood of the right answer; 95 % intervals; gold document at "
        f"{', '.join(map(str, measured['curves'][0]['positions']))}",
    ]
    for curve in measured["curves"]:
        for score in ("accuracy", "log_likelihood"):
            cells = [in_brackets(mean, share=score == "accuracy") for mean in curve[score]]
            name = f"{title_of(curve['label'])}, {score.replace('_', '-')}"
            lines.append(f"{name:<28} {'  '.join(f'{cell:>20}' for cell in cells)}")
    if difference := measured.get("last_minus_first"):
        lines.append(
            "Unmodified, log-likelihood with the gold document last minus first, paired: "
            f"{in_brackets(difference, share=False)}"
        )
    return "\n".join(lines)
