"""``rag-middle ask``: a question about documents, and its answer with sources."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rag_middle.cli.asking import (
    OTHER_NAMES,
    DocsOption,
    EmbedderOption,
    IndexOption,
    MaxFileMibOption,
    ModelOption,
    PromptTemplateOption,
    RebuildOption,
    TopKOption,
    open_answerer,
    show_answer,
    show_sources,
    stream_text,
)
from rag_middle.cli.console import DebugOption, JsonOption, console, print_json, reporting
from rag_middle.cli.flags import flags_of
from rag_middle.cli.method_options import parse_method_options
from rag_middle.cli.options import (
    OUTPUT_PANEL,
    AttnImplementationOption,
    ContextWindowOption,
    DeviceOption,
    Dtype,
    DtypeOption,
    MaxNewTokensOption,
    MethodOption,
    MethodOptionsOption,
    MissingDocuments,
    MissingDocumentsOption,
    Overflow,
    OverflowOption,
    RepetitionPenaltyOption,
    RevisionOption,
    SeedOption,
    StopOption,
    SystemOption,
    TemperatureOption,
    Template,
    TemplateOption,
    TopPOption,
    TrustRemoteCodeOption,
)

if TYPE_CHECKING:
    from rag_middle.answering import Answerer
    from rag_middle.documents import ContextPrompt
    from rag_middle.tokens import TokenizedPrompt

__all__ = ["ask"]


def ask(
    question: Annotated[str, typer.Argument(help="What to answer.")],
    docs: DocsOption = None,
    index: IndexOption = None,
    top_k: TopKOption = 10,
    embedder: EmbedderOption = None,
    rebuild: RebuildOption = False,
    max_file_mib: MaxFileMibOption = None,
    model: ModelOption = None,
    method: MethodOption = "none",
    method_option: MethodOptionsOption = None,
    prompt_template: PromptTemplateOption = None,
    template: TemplateOption = Template.auto,
    system: SystemOption = None,
    on_overflow: OverflowOption = Overflow.drop_documents,
    on_missing_documents: MissingDocumentsOption = MissingDocuments.warn,
    max_new_tokens: MaxNewTokensOption = 256,
    temperature: TemperatureOption = 0.0,
    top_p: TopPOption = 1.0,
    repetition_penalty: RepetitionPenaltyOption = 1.0,
    seed: SeedOption = None,
    stop: StopOption = None,
    context_window: ContextWindowOption = None,
    dtype: DtypeOption = Dtype.auto,
    device: DeviceOption = None,
    attn_implementation: AttnImplementationOption = None,
    revision: RevisionOption = None,
    trust_remote_code: TrustRemoteCodeOption = False,
    show_prompt: Annotated[
        bool,
        typer.Option(
            "--show-prompt",
            help="Show the prompt as the model reads it, on standard error.",
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = False,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Answer a question from documents, with sources.

    The documents are indexed the first time, and the closest ones go into the prompt. The answer
    and its sources go to standard output, everything else to standard error.
    """
    with reporting(as_json=as_json, debug=debug, flags=flags_of(ask, **OTHER_NAMES)):
        _check_question(question)
        shape: dict[str, Any] = {"template": template.value, "system": system}
        options: dict[str, Any] = {
            **shape,
            "on_overflow": on_overflow.value,
            "on_missing_documents": on_missing_documents.value,
            "max_new_tokens": max_new_tokens,
            "temperature": temperature,
            "top_p": top_p,
            "repetition_penalty": repetition_penalty,
            "seed": seed,
            "stop": tuple(stop or ()),
        }
        answerer, built = open_answerer(
            docs,
            index,
            model=model,
            method=method,
            method_options=parse_method_options(method_option or ()),
            top_k=top_k,
            embedder=embedder,
            rebuild=rebuild,
            max_file_mib=max_file_mib,
            prompt_template=prompt_template,
            generation=options,
            context_window=context_window,
            dtype=dtype.value,
            device=device,
            attn_implementation=attn_implementation,
            revision=revision,
            trust_remote_code=trust_remote_code,
            quiet=as_json,
        )
        if as_json:
            answer = answerer.ask(question, **options)
            described = {
                **answer.to_dict(),
                "skipped": [asdict(each) for each in built.skipped] if built else [],
            }
            if show_prompt:
                from rag_middle.cli.token_view import described_text

                tokens = _tokens(answerer, answer.prompt, shape)
                described["prompt"] = described_text(answerer.model.tokenizer, tokens)
            print_json(described)
            return
        with answerer.stream(question, **options) as pieces:
            if show_prompt:
                from rag_middle.cli.token_view import show_text

                tokens = _tokens(answerer, pieces.prompt, shape)
                show_text(console(stderr=True), answerer.model.tokenizer, tokens)
            answer = stream_text(pieces)
        print("\nSources, best first:" if answer.sources else "\nNo sources.")
        show_sources(answer.sources)
        show_answer(answer)


def _check_question(question: str) -> None:
    from rag_middle.retrieval.retriever import check_question

    check_question(question)


def _tokens(answerer: Answerer, prompt: ContextPrompt, shape: dict[str, Any]) -> TokenizedPrompt:
    # The documents are in the method's order already.
    return answerer.model.encode(prompt, method="none", **shape)
