"""``rag-middle generate``: prompts in, answers out."""

from __future__ import annotations

import sys
from typing import Any, Literal

from rag_middle.cli.console import JsonOption, print_json, print_text, show_facts, tell_of_default
from rag_middle.cli.measuring import load
from rag_middle.cli.options import (
    MethodOption,
    MethodOptionsOption,
    ModelOption,
    command,
    generation_options,
    loading_options,
    output_flag,
    parse_method_options,
    prompt_flag,
)
from rag_middle.cli.prompt_file import read_prompt
from rag_middle.errors import UnsupportedGenerationError
from rag_middle.options import GenerationOptions

_MARKING = "Put documents between [[rm:doc]] and [[/rm:doc]], or write the prompt as JSON."


@command(options=generation_options(), loading=loading_options)
def generate(
    *,
    model: ModelOption = None,
    prompt: list[str] = prompt_flag(
        ..., "--prompt", "-p", metavar="FILE", help="Or - for standard input; repeatable."
    ),
    method: MethodOption = "none",
    method_option: MethodOptionsOption = None,
    prompt_format: Literal["auto", "text", "json"] = prompt_flag(
        "auto", help="auto: JSON in *.json files and where the prompt begins with {."
    ),
    options: dict[str, Any],
    loading: dict[str, Any],
    stream: bool | None = output_flag(
        None, "--stream/--no-stream", help="Text as it comes. Default: on a terminal."
    ),
    as_json: JsonOption = False,
) -> None:
    """Answer prompts under a method.

    A prompt is a text with documents between [[rm:doc]] and [[/rm:doc]], or JSON with prefix,
    documents and suffix; several go through the model together. The text goes to standard output,
    everything else to standard error.
    """
    beams = options["num_beams"]
    if stream and (as_json or beams > 1 or len(prompt) > 1):
        raise UnsupportedGenerationError(
            "--stream shows one text as it comes: leave it out, or leave out --json, pass one "
            "prompt and --beams 1."
        )
    from rag_middle.methods import resolve_method

    # What can be refused without the model is refused before it is loaded.
    contexts = [read_prompt(source, prompt_format) for source in prompt]
    method_options = parse_method_options(method_option or ())
    resolve_method(method, method_options)
    options["missing_documents_hint"] = _MARKING
    GenerationOptions(**options)
    loaded = load(model, method=method, method_options=method_options, **loading)
    if as_json:
        answers = [answer.to_dict() for answer in loaded.batch(contexts, **options)]
        print_json(answers[0] if len(answers) == 1 else answers)
        return
    if model is None:
        tell_of_default()
    if len(contexts) > 1:
        generations = loaded.batch(contexts, **options)
        for source, generation in zip(prompt, generations, strict=True):
            print_text(f"==> {source} <==\n{generation.text}\n\n")
    elif (sys.stdout.isatty() and beams == 1) if stream is None else stream:
        with loaded.stream(contexts[0], **options) as pieces:
            for piece in pieces:
                print_text(piece)
            print_text("\n")
            generations = [pieces.result]
    else:
        generations = [loaded.generate(contexts[0], **options)]
        print_text(generations[0].text + "\n")
    for generation in generations:
        # Dropped documents and a drawn seed are said to logs and scripts too.
        if sys.stderr.isatty() or generation.dropped_documents or generation.seed is not None:
            show_facts(generation)
