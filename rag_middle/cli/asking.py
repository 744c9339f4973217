"""What ``rag-middle ask`` and ``rag-middle chat`` share: options, loading, showing answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rag_middle.cli.console import console, print_text, quiet_progress_bars, tell, warn
from rag_middle.cli.index import report_skipped, summary
from rag_middle.cli.measuring import open_endpoint, progress_bar
from rag_middle.cli.options import (
    GENERATION,
    METHOD_HELP,
    METHOD_PANEL,
    PROMPT_PANEL,
    EmbedderOption,
    MethodOptionsOption,
    ModelOption,
    Panel,
    RebuildOption,
    flag,
    generation_flags,
    parse_method_options,
    placed,
)
from rag_middle.errors import ConfigError
from rag_middle.small_model import NAME
from rag_middle.wording import counted

if TYPE_CHECKING:
    from rag_middle.answering import Answer, Answerer, AnswerStream, Source
    from rag_middle.generation import Generation
    from rag_middle.retrieval import Built

RETRIEVAL_PANEL = Panel("Retrieval")

ANSWERING = (
    RETRIEVAL_PANEL.flag(
        "docs",
        Path | None,
        names=("--docs", "-d"),
        metavar="PATH",
        help="File or folder: text, Markdown, PDF, HTML, Word, sheets. It is indexed once; later "
        "only what has changed.",
    ),
    RETRIEVAL_PANEL.flag(
        "index",
        Path | None,
        metavar="FOLDER",
        help="Where the index is kept. Default: in the user's cache. Without --docs, an index that "
        "is used as it is.",
    ),
    RETRIEVAL_PANEL.flag(
        "top_k", int, 10, min=1, help="Documents of a prompt; fewer where there are fewer."
    ),
    flag("embedder", EmbedderOption),
    flag("rebuild", RebuildOption, False),
    flag("model", ModelOption),
    METHOD_PANEL.flag(
        "method",
        str | None,
        help=f"{METHOD_HELP} Default: none; behind an HTTP address, what its server uses.",
    ),
    flag("method_option", MethodOptionsOption),
    PROMPT_PANEL.flag(
        "prompt_template",
        Path | None,
        metavar="FILE",
        help="JSON with prefix, document, separator and suffix. Default: the model's own, else one "
        "for models that follow instructions.",
    ),
)
"""What documents, model and method answer; arguments of `open_answerer`."""
QUESTION = generation_flags(
    [name for name in GENERATION if name not in ("top_k", "num_beams")],
    on_overflow="drop_documents",
)
"""Options of a question: it is streamed, which beams cannot be, and ``--top-k`` are documents."""


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
        loading: values of `LOADING`.
        quiet: say nothing about the index.
        remote: where the model is, if it is not to be loaded: values of `ENDPOINT`.
        how: more arguments of ``Answerer.over``; the others are values of `ANSWERING`.
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
    if not quiet:
        for built in done:
            _tell_index(built, documents)
        if model is None and endpoint is None:
            tell_of_default()
    return answerer, done[0] if done else None


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


def _tell_index(built: Built, documents: Path) -> None:
    if built.changes is not None:
        report_skipped(built.skipped)
        tell("Index", "dim", f"{summary(built)}.")
    elif built.skipped:
        warn(f"{len(built.skipped)} skipped: `rag-middle index {documents}` says what and why.")


def tell_of_default() -> None:
    """Say on standard error which model answers where none was named."""
    tell("Model", "dim", f"{NAME}, a very small one. Name a better one with --model.")


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


def show_facts(answer: Generation, *, retrieve: float | None = None) -> None:
    """One line about an answer, on standard error.

    Args:
        retrieve: seconds spent on finding its documents, if they were searched for.
    """
    from rich.text import Text

    idle = not answer.applied and answer.method != "none"
    facts = [
        f"{answer.method} (without effect on this prompt)" if idle else answer.method,
        f"{counted(answer.usage.prompt_tokens, 'prompt token')} in "
        f"{counted(answer.documents, 'document')}",
        f"{answer.usage.completion_tokens} generated ({answer.finish_reason})",
        *([] if retrieve is None else [f"retrieval {retrieve:.2f} s"]),
        f"time to first token {answer.timings.time_to_first_token:.2f} s",
        f"{answer.tokens_per_second:.1f} tokens/s",
    ]
    if answer.dropped_documents:
        facts.append(f"{counted(len(answer.dropped_documents), 'document')} dropped")
    if answer.seed is not None:
        facts.append(f"seed {answer.seed}")
    console(stderr=True).print(Text(" · ".join(facts), "dim"), soft_wrap=True)


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
        line = "  ".join([f"{position:>8}", f"{score:>6}", *columns])
        notes = ["left out: context window exceeded"] * (source.position is None)
        notes += ["cited"] * source.cited
        print_text(line + "".join(f"  [{note}]" for note in notes) + "\n")
        print_text(f"{'':>18}{source.snippet}\n")
