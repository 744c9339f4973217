"""``rag-middle ask`` and ``chat``: questions about documents, and their answers with sources."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rag_middle.checkpoints import checkpoint_states
from rag_middle.cli import console
from rag_middle.cli import options as opt
from rag_middle.cli.index import report_skipped, summary
from rag_middle.cli.models import Endpoint, Loading, open_endpoint, placed
from rag_middle.errors import ConfigError, ModelNotFoundError, RagMiddleError
from rag_middle.registry import suggest

if TYPE_CHECKING:
    from rag_middle.answering import Answer, Answerer, Source
    from rag_middle.retrieval import Built


def _answering(
    *,
    docs: Path | None = opt.retrieval_flag(
        None, "--docs", "-d", metavar="PATH", help="File or folder. It is indexed once."
    ),
    index_folder: Path | None = opt.retrieval_flag(
        None, "--index", metavar="FOLDER", help="Where the index is. Default: the user's cache."
    ),
    top_k: int = opt.retrieval_flag(10, min=1, help="Documents of a prompt."),
    embedder: opt.Embedder = None,
    rebuild: opt.Rebuild = False,
    model: opt.Model = None,
    method: str | None = opt.method_flag(None, help=opt.METHOD_HELP),
    method_option: opt.MethodOptions = None,
    prompt_template: Path | None = opt.prompt_flag(
        None, metavar="FILE", help="JSON that says how prompts are written."
    ),
) -> None:
    """What documents, model and method answer: arguments of ``Answerer.over``."""


Answering = Annotated[dict[str, Any], opt.group(_answering)]
# An answer is streamed, which beams cannot be, and --top-k are documents.
Question = Annotated[
    dict[str, Any], opt.generation_options("top_k", "num_beams", on_overflow="drop_documents")
]


@opt.command
def ask(
    question: str = typer.Argument(..., help="What to answer."),
    *,
    answering: Answering,
    options: Question,
    loading: Loading,
    remote: Endpoint,
    enable_thinking: opt.Thinking = None,
    all_sources: bool = opt.output_flag(
        False, "--all-sources", help="Every passage that was found, not one for each document."
    ),
    show_prompt: bool = opt.output_flag(
        False, "--show-prompt", help="Show the prompt too, on standard error."
    ),
    as_json: opt.Json = False,
) -> None:
    """Answer a question from documents, with sources.

    Sources are the documents that the answer names, or, where it names none, those that the model
    read. Answer and sources go to standard output, everything else to standard error. More options
    are in docs/cli.md.
    """
    if not question.strip():
        raise ConfigError("There is no question: write it after the command, in quotes.")
    options = opt.checked_request(options, enable_thinking)
    answerer, built = open_answerer(answering, loading, remote, quiet=as_json)
    if as_json:
        answer = answerer.ask(question, **options)
        skipped = [each._asdict() for each in (built.skipped if built else ())]
        prompt = {"prompt": answer.prompt.text} if show_prompt else {}
        console.print_json({**answer.to_dict(), "skipped": skipped, **prompt})
        return
    answer = _answer(answerer, question, options, every=all_sources)
    if show_prompt:
        console.print_text(answer.prompt.text, stderr=True)


_COMMANDS = {
    "/sources": "all sources of the last answer",
    "/method": "NAME [OPTION=VALUE ...]: answer under this method",
    "/new": "forget the conversation",
    "/help": "this list",
    "/quit": "end (so does Ctrl-D)",
}


@opt.command
def chat(
    answering: Answering,
    options: Question,
    loading: Loading,
    remote: Endpoint,
    enable_thinking: opt.Thinking = None,
    turns: int = opt.prompt_flag(
        5, min=0, help="Earlier questions and answers in a prompt. 0: each question on its own."
    ),
) -> None:
    """Answer questions from documents, one after another, as a conversation.

    Documents are looked for and marked anew for each question; earlier questions and answers stand
    before them. In between, /sources lists the sources of the last answer, /method NAME changes the
    method, /new forgets the conversation, /help lists the commands and /quit ends. Questions may
    also come from a file or pipe, one per line; exit status 2 if one could not be answered.
    """
    options = opt.checked_request(options, enable_thinking)
    answerer, _ = open_answerer(answering, loading, remote, quiet=False)
    method = answerer.method
    last: Answer | None = None
    history: list[tuple[str, str]] = []
    failed, is_typed = False, sys.stdin.isatty()
    for line in _typed() if is_typed else filter(None, map(str.strip, sys.stdin)):
        name, *words = line.split()
        try:
            if name == "/quit":
                break
            if name == "/help":
                console.print_text("\n".join(f"{it:9} {does}" for it, does in _COMMANDS.items()))
            elif name == "/new":
                history.clear()
            elif name == "/sources":
                if last is None:
                    raise ConfigError("There is no answer yet whose sources to show: ask first.")
                _show_sources(last.sources)
            elif name == "/method" and words:
                method_options = opt.parse_method_options(words[1:])
                method = answerer.model.checked_method(words[0], method_options)
                console.tell("Method", words[0])
            elif name.startswith("/"):
                raise ConfigError(
                    f"{line!r} is no command.{suggest(name, _COMMANDS)} Commands: "
                    f"{', '.join(_COMMANDS)}; /method needs a name (rag-middle methods)."
                )
            else:
                if not is_typed:
                    console.print_text(f"==> {line} <==")
                earlier = history[-turns:] if turns else []
                arguments = {**options, "method": method, "history": earlier}
                last = _answer(answerer, line, arguments)
                history.append((line, last.text))
        except RagMiddleError as error:
            failed = True
            console.tell("Error", str(error), "red")
    if failed and not is_typed:
        raise typer.Exit(console.USAGE_ERROR)


def _typed() -> Iterator[str]:
    """Lines from a terminal, with editing and history where there is a readline."""
    with suppress(ImportError):  # Windows has none
        import readline  # noqa: F401 - input() uses it once it is imported
    with suppress(EOFError):
        while True:
            if line := input("> ").strip():
                yield line


def open_answerer(
    answering: dict[str, Any], loading: Mapping[str, Any], remote: Mapping[str, Any], *, quiet: bool
) -> tuple[Answerer, Built | None]:
    """Everything loaded; and what indexing did, where documents were indexed.

    The arguments are values of `Answering`, `Loading` and `Endpoint`; `quiet` says nothing of it.
    """
    documents = _documents(answering.pop("docs", None), answering.get("index_folder"))
    method, options = answering.pop("method", None), answering.pop("method_option", None)
    if method is not None or options:
        answering["method"] = opt.chosen_method(method or "none", options)
    from huggingface_hub.constants import HF_HUB_OFFLINE

    name = answering.pop("model", None)
    is_elsewhere = "endpoint" in remote or (not HF_HUB_OFFLINE and str(name).count("/") < 2)
    if name and not is_elsewhere and not checkpoint_states({**loading, "name_or_path": name})[0]:
        raise ModelNotFoundError(
            f"Cannot load the model {name!r}: it is not here. Check the path; for a name on the "
            "Hugging Face hub, unset HF_HUB_OFFLINE."
        )
    from rag_middle.answering import Answerer, PromptTemplate

    if "prompt_template" in answering:
        answering["prompt_template"] = PromptTemplate.load(answering["prompt_template"])
    endpoint = open_endpoint(remote, name, loading, method=answering.get("method"))
    answering |= {} if endpoint else placed(loading)
    done: list[Built] = []
    console.quiet_progress_bars()
    if not quiet:
        console.tell("Documents", f"{documents}: indexing what is new, and loading the model.")
    with console.progress_bar("embedding", hidden=quiet) as progress:
        answerer = Answerer.over(
            documents,
            model=endpoint or name,
            on_index=done.append,
            progress=progress,
            **answering,
        )
    built = done[0] if done else None
    if not quiet and built is not None:
        if built.changes is not None:
            report_skipped(built.skipped)
            console.tell("Index", f"{summary(built)}.")
        elif built.skipped:
            advice = f"`rag-middle index {documents}` says what and why."
            console.warn(f"{len(built.skipped)} skipped: {advice}")
    if not quiet and name is None and endpoint is None:
        console.tell_of_default()
    return answerer, built


def _documents(docs: Path | None, index: Path | None) -> Path:
    from rag_middle.retrieval.readers import READERS, check_exists, files_in, is_index_folder, load

    documents = docs or index
    if documents is None:
        raise ConfigError("There is nothing to read: name --docs PATH, or an index with --index.")
    check_exists(documents)
    # Documents may be anybody's; an index is trusted as a model is.
    if docs is not None and is_index_folder(docs):
        raise ConfigError(f"{str(docs)!r} is a saved index: name it with --index if you trust it.")
    if docs and not any(file.suffix.lower() in READERS for _, file in files_in(docs)):
        load(docs)  # says why there is nothing to read, before PyTorch is imported
    if docs is None and not is_index_folder(documents):
        raise ConfigError(f"No index, or a damaged one, in {str(index)!r}: name its --docs too.")
    return documents


def _answer(
    answerer: Answerer, question: str, options: Mapping[str, Any], *, every: bool = False
) -> Answer:
    """Write an answer to standard output as it comes, and its sources: used ones, or every one."""
    begun = False
    with answerer.stream(question, **options) as pieces:
        for piece in pieces:
            # The text begins where its first word does, as `Answer.text` has it.
            text = piece if begun else piece.lstrip()
            begun = begun or bool(text)
            console.print_text(text, end="")
        answer = pieces.result
    console.print_text("")
    if answer.finish_reason == "content_filter":
        console.warn("the server's content filter withheld this answer, or its end.")
    sources = answer.sources if every else used_sources(answer)
    console.print_text("\nSources, best first:" if sources else "\nNo sources.")
    _show_sources(sources)
    if more := len(answer.sources) - len(sources):
        console.tell("Sources", f"{more} more were found (--all-sources; in chat /sources).")
    console.show_facts(answer.generation, retrieve=answer.timings.retrieve)
    return answer


def used_sources(answer: Answer) -> list[Source]:
    """The best source of each document that the answer names; of each read, if it names none."""
    read = [source for source in answer.sources if source.position is not None]
    best: dict[str | None, Source] = {}
    for source in answer.cited or read:
        best.setdefault(source.path or source.document.id, source)
    return list(best.values())


def _show_sources(sources: Sequence[Source]) -> None:
    """Each source on standard output: 0-based position in the prompt, score, place, beginning."""
    if sources:
        console.print_text(f"{'position':>8}  {'score':>6}  source")
    for source in sources:
        position = "-" if source.position is None else str(source.position)
        score = "" if source.score is None else f"{source.score:.3f}"
        headings = dict.fromkeys(filter(None, (source.title, source.heading)))
        # One line each: a line end in a title would write the row of a source that is none.
        columns = [" ".join(fact.split()) for fact in (source.where, " > ".join(headings)) if fact]
        columns += ["[left out: context window exceeded]"] * (source.position is None)
        columns += ["[cited]"] * source.cited
        console.print_text("  ".join([f"{position:>8}", f"{score:>6}", *columns]))
        console.print_text(f"{'':>18}{source.snippet}")
