"""``rag-middle demo``: what position bias is, and what a method does about it."""

from __future__ import annotations

import webbrowser
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from rag_middle.cli import console
from rag_middle.cli import options as opt
from rag_middle.cli.index import summary
from rag_middle.cli.models import Loading, placed


@opt.command
def demo(
    *,
    model: opt.Model = None,
    method: opt.MethodName = "pine",
    method_option: opt.MethodOptions = None,
    questions: int = typer.Option(4, min=2, help="To measure with."),
    documents: int = typer.Option(5, min=2, help="Documents per prompt of the measurement."),
    top_k: int = opt.retrieval_flag(10, min=2, help="Documents of a prompt."),
    loading: Loading,
    out: Path = opt.output_flag(
        Path("rag-middle-demo"), help="Folder for demo.html, demo.png and demo.json."
    ),
    open_page: bool = opt.output_flag(False, "--open", help="Show the page in a browser."),
    as_json: opt.Json = False,
) -> None:
    """Show what the position of a document does to answers, and what a method does about it.

    Indexes 600 passages of Wikipedia, answers three questions from what is found, with the best
    document first and last, unmodified and under the method, and measures a few more questions by
    the position of the passage that answers, the gold document. Beside this small sample it shows
    the full measurement that comes with the package.
    """
    from rag_middle.demo import Demo, full_measurement, write_demonstration
    from rag_middle.demo.demonstration import CHOSEN
    from rag_middle.evaluation.plots import new_figure

    new_figure()  # without matplotlib there is no picture: said before minutes are spent
    console.quiet_progress_bars()

    def say(text: str, *, stderr: bool = False) -> None:
        if not as_json:
            console.print_text(text, stderr=stderr)

    say("\nStep 1 of 4: index 600 passages of Wikipedia, load the model", stderr=True)
    with console.progress_bar("embedding", hidden=as_json) as embedded:
        started = Demo(
            model,
            method=opt.chosen_method(method, method_option),
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
    with console.progress_bar("measuring", hidden=as_json) as bar:
        command = console.command_line()
        measured = started.measure(questions, documents, progress=bar, command=command)
    say("\nStep 4 of 4: page and picture", stderr=True)
    full = full_measurement()
    shown = {"examples": examples, "measured": measured, "full": full}
    files = write_demonstration(shown, out)
    say(_measurement_text("Measured here, a small sample", measured))
    if full:
        say(_measurement_text("The full measurement, which comes with the package", full))
    say(f"\n{files['png']}\n{files['html']}")
    if as_json:
        paths = {suffix: str(path) for suffix, path in files.items()}
        console.print_json({**shown, "files": paths})
    if open_page:
        webbrowser.open(files["html"].resolve().as_uri())


def _example_text(example: Mapping[str, Any]) -> str:
    from rag_middle.demo.page import title_of

    lines = [f"\n{example['question']}", f"  right: {'; '.join(example['answers'])}"]
    for reply in example["replies"]:
        verdict = "right" if reply["right"] else "wrong"
        where = f"{title_of(reply['method'])}, best document {reply['best']}"
        lines.append(f"  {where}: {' '.join(reply['text'].split())} [{verdict}]")
    titles = "; ".join(str(source["title"]) for source in example["sources"])
    return "\n".join([*lines, f"  sources, best first: {titles}"])


def _measurement_text(what: str, measured: Mapping[str, Any]) -> str:
    from rag_middle.demo.page import in_brackets, title_of

    scores = "Accuracy in %, log" if measured["metric"] == "accuracy" else "Log"
    positions = ", ".join(map(str, measured["curves"][0]["positions"]))
    lines = [
        f"\n{what}: {measured['questions']} questions, {measured['documents']} documents, "
        f"{measured['model']}",
        f"{scores}-likelihood of the correct answer; 95 % intervals; gold document at {positions}",
    ]
    for curve in measured["curves"]:
        for score in (s for s in ("accuracy", "log_likelihood") if s in curve):
            cells = [in_brackets(mean, share=score == "accuracy") for mean in curve[score]]
            name = f"{title_of(curve['label'])}, {score.replace('_', '-')}"
            lines.append(f"{name:<28} {'  '.join(f'{cell:>20}' for cell in cells)}")
    if difference := measured.get("last_minus_first"):
        paired = in_brackets(difference, share=False)
        lines.append(f"Unmodified, log-likelihood, last minus first, paired: {paired}")
    return "\n".join(lines)
