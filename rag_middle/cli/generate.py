"""``rag-middle generate``: prompts in, answers out."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from rag_middle.cli.answers import (
    answer_all,
    load_model,
    print_answers,
    show_facts,
    show_prompt,
    stream_answer,
)
from rag_middle.cli.checks import check_generation, check_method, check_profiles
from rag_middle.cli.console import DebugOption, JsonOption, print_text, reporting
from rag_middle.cli.flags import flags_of
from rag_middle.cli.method_options import parse_method_options
from rag_middle.cli.options import (
    MODEL_PANEL,
    OUTPUT_PANEL,
    PROMPT_PANEL,
    TEXT_PANEL,
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
from rag_middle.cli.prompt_file import PromptFormat, read_prompt
from rag_middle.errors import UnsupportedGenerationError

__all__ = ["generate"]


def generate(
    model: Annotated[
        str,
        typer.Option("--model", "-m", help="Directory or hub name.", rich_help_panel=MODEL_PANEL),
    ],
    prompt: Annotated[
        list[str],
        typer.Option(
            "--prompt",
            "-p",
            metavar="FILE",
            help="File, or - for standard input: a text with documents between [[rm:doc]] and "
            "[[/rm:doc]], or JSON with prefix, documents and suffix. Repeatable: several prompts "
            "go through the model together.",
            rich_help_panel=PROMPT_PANEL,
        ),
    ],
    method: MethodOption = "none",
    method_option: MethodOptionsOption = None,
    prompt_format: Annotated[
        PromptFormat,
        typer.Option(
            help="auto: JSON in files named *.json and where the prompt begins with {.",
            rich_help_panel=PROMPT_PANEL,
        ),
    ] = PromptFormat.auto,
    template: TemplateOption = Template.auto,
    system: SystemOption = None,
    on_overflow: OverflowOption = Overflow.error,
    on_missing_documents: MissingDocumentsOption = MissingDocuments.warn,
    max_new_tokens: MaxNewTokensOption = 256,
    temperature: TemperatureOption = 0.0,
    top_p: TopPOption = 1.0,
    top_k: Annotated[
        int,
        typer.Option(
            min=0, help="Draw from this many likeliest tokens; 0: all.", rich_help_panel=TEXT_PANEL
        ),
    ] = 0,
    repetition_penalty: RepetitionPenaltyOption = 1.0,
    beams: Annotated[
        int, typer.Option(min=1, help="Beams of a beam search.", rich_help_panel=TEXT_PANEL)
    ] = 1,
    seed: SeedOption = None,
    stop: StopOption = None,
    context_window: ContextWindowOption = None,
    dtype: DtypeOption = Dtype.auto,
    device: DeviceOption = None,
    attn_implementation: AttnImplementationOption = None,
    revision: RevisionOption = None,
    trust_remote_code: TrustRemoteCodeOption = False,
    stream: Annotated[
        bool | None,
        typer.Option(
            "--stream/--no-stream",
            help="Write the text as it comes. Default: on a terminal.",
            show_default=False,
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = None,
    show_tokens: Annotated[
        bool,
        typer.Option(
            "--show-tokens",
            help="Show the prompt's tokens by part, with counts, on standard error.",
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = False,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Answer prompts under a method.

    The text goes to standard output, everything else to standard error.
    """
    with reporting(as_json=as_json, debug=debug, flags=flags_of(generate, num_beams="--beams")):
        _check_output(prompt, stream=bool(stream), as_json=as_json, beams=beams)
        # What can be refused without the model is refused before it is loaded.
        contexts = [read_prompt(source, prompt_format) for source in prompt]
        method_options = parse_method_options(method_option or ())
        check_profiles([method])
        check_method(method, method_options)
        shape: dict[str, Any] = {"template": template.value, "system": system}
        options: dict[str, Any] = {
            **shape,
            "on_overflow": on_overflow.value,
            "on_missing_documents": on_missing_documents.value,
            "max_new_tokens": max_new_tokens,
            "temperature": temperature,
            "top_p": top_p,
            "top_k": top_k,
            "repetition_penalty": repetition_penalty,
            "num_beams": beams,
            "seed": seed,
            "stop": tuple(stop or ()),
        }
        check_generation(options)
        loaded = load_model(
            model,
            method=method,
            method_options=method_options,
            context_window=context_window,
            dtype=dtype.value,
            device=None if device == "auto" else device,
            device_map=device if device == "auto" else None,
            attn_implementation=attn_implementation,
            revision=revision,
            trust_remote_code=trust_remote_code,
        )
        tokens = [loaded.encode(each, **shape) for each in contexts] if show_tokens else []
        if as_json:
            answers = loaded.batch(contexts, **options)
            print_answers(loaded, answers, tokens)
            return
        for each in tokens:
            show_prompt(loaded, each)
        if len(contexts) > 1:
            answers = answer_all(loaded, prompt, contexts, options)
        elif (sys.stdout.isatty() and beams == 1) if stream is None else stream:
            answers = [stream_answer(loaded, contexts[0], options)]
        else:
            answers = [loaded.generate(contexts[0], **options)]
            print_text(answers[0].text + "\n")
        for answer in answers:
            # Dropped documents and a drawn seed are said to logs and scripts too.
            if sys.stderr.isatty() or answer.dropped_documents or answer.seed is not None:
                show_facts(answer)


def _check_output(sources: list[str], *, stream: bool, as_json: bool, beams: int) -> None:
    if stream and as_json:
        raise UnsupportedGenerationError(
            "--json writes one document at the end: leave out --stream."
        )
    if stream and beams > 1:
        raise UnsupportedGenerationError(
            f"A search with {beams} beams knows its text only at the end: leave out --stream, or "
            "pass --beams 1."
        )
    if stream and len(sources) > 1:
        raise UnsupportedGenerationError(
            f"--stream shows one text as it comes and there are {len(sources)} prompts: leave it "
            "out, or pass one prompt."
        )
    if sources.count("-") > 1:
        raise UnsupportedGenerationError("Standard input holds one prompt: pass - once.")
