"""``rag-middle ask``: a question about documents, and its answer with sources."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rag_middle.cli.console import (
    JsonOption,
    print_json,
    print_text,
    progress_bar,
    quiet_progress_bars,
    show_facts,
    tell,
    tell_of_default,
    warn,
)
from rag_middle.cli.index import report_skipped, summary
from rag_middle.cli.measuring import open_endpoint
from rag_middle.cli.options import (
    GENERATION,
    METHOD_HELP,
    EmbedderOption,
    MethodOptionsOption,
    ModelOption,
    RebuildOption,
    command,
    endpoint_options,
    generation_options,
    loading_options,
    method_flag,
    output_flag,
    parse_method_options,
    placed,
    prompt_flag,
    retrieval_flag,
)
from rag_middle.errors import ConfigError
from rag_middle.options import GenerationOptions

if TYPE_CHECKING:
    from rag_middle.answering import Answer, Answerer, AnswerStream, Source
    from rag_middle.documents import ContextPrompt
    from rag_middle.retrieval import Built


def answering_options(
    *,
    docs: Path | None = retrieval_flag(
        None, "--docs", "-d", metavar="PATH", help="File or folder. It is indexed once."
    ),
    index: Path | None = retrieval_flag(
        None, metavar="FOLDER", help="Where the index is. Default: the user's cache."
    ),
    top_k: int = retrieval_flag(10, min=1, help="Documents of a prompt."),
    embedder: EmbedderOption = None,
    rebuild: RebuildOption = False,
    model: ModelOption = None,
    method: str | None = method_flag(None, help=METHOD_HELP),
    method_option: MethodOptionsOption = None,
    prompt_template: Path | None = prompt_flag(
        None, metavar="FILE", help="JSON that says how prompts are written."
    ),
) -> None:
    """What documents, model and method answer: arguments of `open_answerer`."""


QUESTION = generation_options(
    [name for name in GENERATION if name not in ("top_k", "num_beams")],
    on_overflow="drop_documents",
)
"""Options of a question: it is streamed, which beams cannot be, and ``--top-k`` are documents."""


@command(
    answering=answering_options, options=QUESTION, loading=loading_options, remote=endpoint_options
)
def ask(
    question: str = typer.Argument(..., help="What to answer."),
    *,
    answering: dict[str, Any],
    options: dict[str, Any],
    loading: dict[str, Any],
    remote: dict[str, Any],
    show_prompt: bool = output_flag(
        False, "--show-prompt", help="Show the prompt too, on standard error."
    ),
    as_json: JsonOption = False,
) -> None:
    """Answer a question from documents, with sources.

    The answer and its sources go to standard output, everything else to standard error. More
    options are in docs/cli.md.
    """
    from rag_middle.retrieval.faiss_index import check_question

    check_question(question)
    GenerationOptions(**options)  # refused before anything is indexed
    answerer, built = open_answerer(loading, quiet=as_json, remote=remote, **answering)
    if as_json:
        answer = answerer.ask(question, **options)
        skipped = [each._asdict() for each in built.skipped] if built else []
        prompt = {"prompt": _parts(answer.prompt)} if show_prompt else {}
        print_json({**answer.to_dict(), "skipped": skipped, **prompt})
        return
    with answerer.stream(question, **options) as pieces:
        if show_prompt:
            print_text(f"{pieces.prompt.text}\n", stderr=True)
        answer = stream_text(pieces)
    print_text("\nSources, best first:\n" if answer.sources else "\nNo sources.\n")
    show_sources(answer.sources)
    show_facts(answer.generation, retrieve=answer.timings.retrieve)


def _parts(prompt: ContextPrompt) -> dict[str, Any]:
    documents = [document.render() for document in prompt.documents]
    return {"prefix": prompt.prefix, "documents": documents, "suffix": prompt.suffix}


def open_answerer(
    loading: dict[str, Any],
    *,
    quiet: bool,
    method: str | None = None,
    docs: Path | None = None,
    index: Path | None = None,
    model: str | None = None,
    method_option: Iterable[str] = (),
    prompt_template: Path | None = None,
    remote: Mapping[str, Any],
    **how: Any,
) -> tuple[Answerer, Built | None]:
    """Everything loaded; and what indexing did, where documents were indexed.

    Args:
        loading: values of `loading_options`.
        quiet: say nothing about the index.
        remote: where the model is, if it is not to be loaded: values of `endpoint_options`.
        how: more arguments of ``Answerer.over``; the others are those of `answering_options`.
    """
    from rag_middle.methods import resolve_method
    from rag_middle.retrieval import check_exists

    method_options = parse_method_options(method_option)
    documents = _documents(docs, index)
    check_exists(documents)
    resolve_method(method or "none", method_options)  # refused before PyTorch is imported

    from rag_middle.answering import Answerer, PromptTemplate

    template = None if prompt_template is None else PromptTemplate.load(prompt_template)
    endpoint = open_endpoint(remote, model, loading, method=method, method_options=method_options)
    if endpoint is None:
        how |= placed(loading)
    done: list[Built] = []
    quiet_progress_bars()
    if not quiet:
        tell("Documents", "dim", f"{documents}: indexing what is new, and loading the model.")
    with progress_bar("embedding", hidden=quiet) as progress:
        answerer = Answerer.over(
            documents,
            model=endpoint or model,
            method=method,
            method_options=method_options,
            index_folder=None if docs is None else index,
            prompt_template=template,
            on_index=done.append,
            progress=progress,
            **how,
        )
    built = done[0] if done else None
    if not quiet and built is not None:
        if built.changes is not None:
            report_skipped(built.skipped)
            tell("Index", "dim", f"{summary(built)}.")
        elif built.skipped:
            warn(f"{len(built.skipped)} skipped: `rag-middle index {documents}` says what and why.")
    if not quiet and model is None and endpoint is None:
        tell_of_default()
    return answerer, built


def _documents(docs: Path | None, index: Path | None) -> Path:
    from rag_middle.retrieval.readers import is_index_folder

    if docs is not None:
        if is_index_folder(docs):  # documents may be anybody's; an index is trusted as a model is
            raise ConfigError(
                f"{str(docs)!r} is a saved index: name it with --index if you trust it."
            )
        return docs
    if index is None:
        raise ConfigError(
            "There is nothing to read: name documents with --docs PATH, or an index that "
            "`rag-middle index` has made with --index FOLDER."
        )
    if not is_index_folder(index):
        raise ConfigError(
            f"There is no index in {str(index)!r}, or its manifest is damaged. Name the documents "
            "too, and the index is made there: --docs PATH (with --rebuild where one is damaged)."
        )
    return index


def stream_text(pieces: AnswerStream) -> Answer:
    """Write an answer's text to standard output as it comes."""
    begun = False
    for piece in pieces:
        # The text begins where its first word does, as `Answer.text` has it.
        text = piece if begun else piece.lstrip()
        begun = begun or bool(text)
        print_text(text)
    print_text("\n")
    if pieces.result.finish_reason == "content_filter":
        warn("the server's content filter withheld this answer, or its end.")
    return pieces.result


def show_sources(sources: Iterable[Source]) -> None:
    """Each source on standard output, under a line that names what stands there.

    A line says where the source is: its 0-based position in the prompt, where the method put it;
    score, file and lines or page, title and heading. A second one shows how its text begins.
    """
    for at, source in enumerate(sources):
        if at == 0:
            print_text(f"{'position':>8}  {'score':>6}  source\n")
        position = "-" if source.position is None else str(source.position)
        score = "" if source.score is None else f"{source.score:.3f}"
        headings = dict.fromkeys(filter(None, (source.title, source.heading)))
        # One line each: a line end in a title would write the row of a source that is none.
        columns = [" ".join(fact.split()) for fact in (source.where, " > ".join(headings)) if fact]
        columns += ["[left out: context window exceeded]"] * (source.position is None)
        columns += ["[cited]"] * source.cited
        print_text("  ".join([f"{position:>8}", f"{score:>6}", *columns]) + "\n")
        print_text(f"{'':>18}{source.snippet}\n")
