"""``rag-middle ask``: a question about documents, and its answer with sources."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rag_middle.cli.asking import (
    ANSWERING,
    QUESTION,
    open_answerer,
    show_facts,
    show_sources,
    stream_text,
)
from rag_middle.cli.console import JsonOption, print_json, print_text
from rag_middle.cli.options import ENDPOINT, LOADING, OUTPUT_PANEL, command
from rag_middle.options import GenerationOptions

if TYPE_CHECKING:
    from rag_middle.answering import Answerer
    from rag_middle.documents import ContextPrompt


@command(answering=ANSWERING, options=QUESTION, loading=LOADING, remote=ENDPOINT)
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
    GenerationOptions(**options)  # refused before anything is indexed
    answerer, built = open_answerer(loading, quiet=as_json, remote=remote, **answering)
    if as_json:
        answer = answerer.ask(question, **options)
        skipped = built.skipped if built else ()
        described = {**answer.to_dict(), "skipped": [asdict(each) for each in skipped]}
        if show_prompt:
            described["prompt"] = _parts(answerer, answer.prompt, options)
        print_json(described)
        return
    with answerer.stream(question, **options) as pieces:
        if show_prompt:
            parts = _parts(answerer, pieces.prompt, options).values()
            whole = ("".join(part) for part in parts)  # of the documents, one after the other
            print_text("".join(whole) + "\n", stderr=True)
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
    shape = {name: options[name] for name in ("template", "system") if name in options}
    # The documents are in the method's order already.
    tokens = model.encode(prompt, method="none", **shape)

    def text(ids: tuple[int, ...]) -> str:
        return str(model.tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))

    return {
        "prefix": text(tokens.prefix_ids),
        "documents": [text(ids) for ids in tokens.documents_ids],
        "suffix": text(tokens.suffix_ids),
    }
