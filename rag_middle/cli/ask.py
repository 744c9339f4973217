"""``rag-middle ask``: a question about documents, and its answer with sources."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rag_middle.cli.asking import (
    ANSWERING,
    OTHER_NAMES,
    QUESTION,
    open_answerer,
    show_facts,
    show_sources,
    stream_text,
)
from rag_middle.cli.console import JsonOption, console, print_json, print_text, printable
from rag_middle.cli.endpoint import ENDPOINT
from rag_middle.cli.options import LOADING, OUTPUT_PANEL, command, shape_of

if TYPE_CHECKING:
    from rag_middle.answering import Answerer
    from rag_middle.documents import ContextPrompt

_DOCUMENT_COLOURS = ("green", "cyan", "magenta", "blue")


@command(OTHER_NAMES, answering=ANSWERING, options=QUESTION, loading=LOADING, remote=ENDPOINT)
def ask(
    question: Annotated[str, typer.Argument(help="What to answer.")],
    answering: dict[str, Any],
    options: dict[str, Any],
    loading: dict[str, Any],
    remote: dict[str, Any],
    *,
    show_prompt: Annotated[
        bool,
        OUTPUT_PANEL.option(
            "--show-prompt", help="Show the prompt as the model reads it, on standard error."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Answer a question from documents, with sources.

    The documents are indexed the first time, and the closest ones go into the prompt. The answer
    and its sources go to standard output, everything else to standard error.
    """
    from rag_middle.retrieval.retriever import check_question

    check_question(question)
    answerer, built = open_answerer(options, loading, quiet=as_json, remote=remote, **answering)
    if as_json:
        answer = answerer.ask(question, **options)
        described = {
            **answer.to_dict(),
            "skipped": [asdict(skipped) for skipped in built.skipped] if built else [],
        }
        if show_prompt:
            described["prompt"] = _parts(answerer, answer.prompt, options)
        print_json(described)
        return
    with answerer.stream(question, **options) as pieces:
        if show_prompt:
            _show_parts(_parts(answerer, pieces.prompt, options))
        answer = stream_text(pieces)
    print_text("\nSources, best first:\n" if answer.sources else "\nNo sources.\n")
    show_sources(answer.sources)
    show_facts(answer.generation, retrieve=answer.timings.retrieve)


def _parts(answerer: Answerer, prompt: ContextPrompt, options: dict[str, Any]) -> dict[str, Any]:
    """The text of a prompt's parts as the model reads them; of the whole where it is elsewhere."""
    from rag_middle.generation import RagMiddleModel

    model = answerer.model
    if not isinstance(model, RagMiddleModel):
        return {"text": prompt.text}  # its tokenizer is on the server
    # The documents are in the method's order already.
    tokens = model.encode(prompt, method="none", **shape_of(options))

    def text(ids: tuple[int, ...]) -> str:
        return "".join(
            model.tokenizer.decode(
                list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
        )

    return {
        "prefix": text(tokens.prefix_ids),
        "documents": [text(ids) for ids in tokens.documents_ids],
        "suffix": text(tokens.suffix_ids),
    }


def _show_parts(parts: dict[str, Any]) -> None:
    """Print a prompt; neighbouring documents differ in colour."""
    from rich.text import Text

    shown = Text(printable(parts["text"]) if "text" in parts else "")
    if "text" not in parts:
        shown.append(printable(parts["prefix"]), "yellow")
        for index, document in enumerate(parts["documents"]):
            shown.append(printable(document), _DOCUMENT_COLOURS[index % len(_DOCUMENT_COLOURS)])
        shown.append(printable(parts["suffix"]), "yellow")
    console(stderr=True).print(shown, soft_wrap=True)
