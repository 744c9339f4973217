"""``rag-middle generate``: prompts in, answers out."""

from __future__ import annotations

import sys
from enum import StrEnum
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
from rag_middle.cli.console import DebugOption, JsonOption, reporting
from rag_middle.cli.method_options import parse_method_options
from rag_middle.cli.prompt_file import PromptFormat, read_prompt
from rag_middle.errors import UnsupportedGenerationError

__all__ = ["generate"]

_MODEL = "Model"
_METHOD = "Method"
_PROMPT = "Prompt"
_TEXT = "Generation"
_OUTPUT = "Output"


class Template(StrEnum):
    """Whether the tokenizer's chat template is used; auto: where there is one."""

    auto = "auto"
    chat = "chat"
    raw = "raw"


class Overflow(StrEnum):
    """What to do with a prompt that does not fit."""

    error = "error"
    drop_documents = "drop_documents"


class Dtype(StrEnum):
    """Number format of the weights; auto: as they are stored."""

    auto = "auto"
    bfloat16 = "bfloat16"
    float16 = "float16"
    float32 = "float32"


def generate(
    model: Annotated[
        str,
        typer.Option("--model", "-m", help="Directory or hub name.", rich_help_panel=_MODEL),
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
            rich_help_panel=_PROMPT,
        ),
    ],
    method: Annotated[
        str,
        typer.Option(
            help="A name (see rag-middle methods), NAME:PRESET, or several joined by +.",
            rich_help_panel=_METHOD,
        ),
    ] = "none",
    method_option: Annotated[
        list[str] | None,
        typer.Option(
            "--method-option",
            "-o",
            metavar="NAME=VALUE",
            help="An option of the method, the value in JSON; repeatable.",
            show_default=False,
            rich_help_panel=_METHOD,
        ),
    ] = None,
    prompt_format: Annotated[
        PromptFormat,
        typer.Option(
            help="auto: JSON in files named *.json and where the prompt begins with {.",
            rich_help_panel=_PROMPT,
        ),
    ] = PromptFormat.auto,
    template: Annotated[
        Template,
        typer.Option(
            help="Use the tokenizer's chat template. auto: if it has one.", rich_help_panel=_PROMPT
        ),
    ] = Template.auto,
    system: Annotated[
        str | None,
        typer.Option(help="System message.", show_default=False, rich_help_panel=_PROMPT),
    ] = None,
    on_overflow: Annotated[
        Overflow,
        typer.Option(
            help="A prompt that does not fit: refuse it, or drop the least relevant documents.",
            rich_help_panel=_PROMPT,
        ),
    ] = Overflow.error,
    max_new_tokens: Annotated[
        int, typer.Option(help="Most tokens to generate.", rich_help_panel=_TEXT)
    ] = 256,
    temperature: Annotated[
        float,
        typer.Option(help="0: always the likeliest token. Above: draw.", rich_help_panel=_TEXT),
    ] = 0.0,
    top_p: Annotated[
        float,
        typer.Option(
            help="Draw from the likeliest tokens that make up this probability.",
            rich_help_panel=_TEXT,
        ),
    ] = 1.0,
    top_k: Annotated[
        int,
        typer.Option(help="Draw from this many likeliest tokens; 0: all.", rich_help_panel=_TEXT),
    ] = 0,
    repetition_penalty: Annotated[
        float,
        typer.Option(help="Above 1: repeat less of what is there.", rich_help_panel=_TEXT),
    ] = 1.0,
    beams: Annotated[int, typer.Option(help="Beams of a beam search.", rich_help_panel=_TEXT)] = 1,
    seed: Annotated[
        int | None,
        typer.Option(
            help="Repeat a drawn text; it is reported where none is given.",
            show_default=False,
            rich_help_panel=_TEXT,
        ),
    ] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option(
            help="End before this string; repeatable.", show_default=False, rich_help_panel=_TEXT
        ),
    ] = None,
    dtype: Annotated[
        Dtype,
        typer.Option(help="Number format. auto: as stored.", rich_help_panel=_MODEL),
    ] = Dtype.auto,
    device: Annotated[
        str | None,
        typer.Option(
            help="cpu, cuda, cuda:1 ..., or auto to spread over what there is (needs accelerate).",
            show_default=False,
            rich_help_panel=_MODEL,
        ),
    ] = None,
    attn_implementation: Annotated[
        str | None,
        typer.Option(
            help="sdpa, eager, flash_attention_2 ...", show_default=False, rich_help_panel=_MODEL
        ),
    ] = None,
    revision: Annotated[
        str | None,
        typer.Option(
            help="Commit, tag or branch on the hub.", show_default=False, rich_help_panel=_MODEL
        ),
    ] = None,
    trust_remote_code: Annotated[
        bool,
        typer.Option(
            "--trust-remote-code",
            help="Run code that comes with the model. Read it first.",
            rich_help_panel=_MODEL,
        ),
    ] = False,
    stream: Annotated[
        bool | None,
        typer.Option(
            "--stream/--no-stream",
            help="Write the text as it comes. Default: on a terminal.",
            show_default=False,
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    show_tokens: Annotated[
        bool,
        typer.Option(
            "--show-tokens",
            help="Show the prompt's tokens by part, with counts, on standard error.",
            rich_help_panel=_OUTPUT,
        ),
    ] = False,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Answer prompts under a method.

    The text goes to standard output, everything else to standard error.
    """
    with reporting(as_json=as_json, debug=debug):
        _check_output(prompt, stream=bool(stream), as_json=as_json)
        # What can be refused without the model is refused before it is loaded.
        contexts = [read_prompt(source, prompt_format) for source in prompt]
        method_options = parse_method_options(method_option or ())
        _check_method(method, method_options)
        shape: dict[str, Any] = {"template": template.value, "system": system}
        options: dict[str, Any] = {
            **shape,
            "on_overflow": on_overflow.value,
            "max_new_tokens": max_new_tokens,
            "temperature": temperature,
            "top_p": top_p,
            "top_k": top_k,
            "repetition_penalty": repetition_penalty,
            "num_beams": beams,
            "seed": seed,
            "stop": tuple(stop or ()),
        }
        _check_options(options)
        loaded = load_model(
            model,
            method=method,
            method_options=method_options,
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
            print(answers[0].text)
        for answer in answers:
            # Dropped documents and a drawn seed are said to logs and scripts too.
            if sys.stderr.isatty() or answer.dropped_documents or answer.seed is not None:
                show_facts(answer)


def _check_output(sources: list[str], *, stream: bool, as_json: bool) -> None:
    if stream and as_json:
        raise UnsupportedGenerationError(
            "--json writes one document at the end: leave out --stream."
        )
    if stream and len(sources) > 1:
        raise UnsupportedGenerationError(
            f"--stream shows one text as it comes and there are {len(sources)} prompts: leave it "
            "out, or pass one prompt."
        )
    if sources.count("-") > 1:
        raise UnsupportedGenerationError("Standard input holds one prompt: pass - once.")


def _check_method(method: str, method_options: dict[str, Any]) -> None:
    from rag_middle.methods import resolve_method

    resolve_method(method, method_options)


def _check_options(options: dict[str, Any]) -> None:
    from rag_middle.generation import GenerationOptions

    GenerationOptions(**options)
