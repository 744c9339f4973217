"""``rag-middle generate``: prompts in, answers out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from rag_middle.cli import console
from rag_middle.cli import options as opt
from rag_middle.cli.models import Loading, load
from rag_middle.documents import ContextPrompt, Document, parse
from rag_middle.errors import PromptError, UnsupportedGenerationError
from rag_middle.files import reason
from rag_middle.plain_data import parse_json

_MARKING = "Put documents between [[rm:doc]] and [[/rm:doc]], or write the prompt as JSON."


@opt.command
def generate(
    *,
    model: opt.Model = None,
    prompt: list[str] = opt.prompt_flag(
        ..., "--prompt", "-p", metavar="FILE", help="Or - for standard input; repeatable."
    ),
    method: opt.MethodName = "none",
    method_option: opt.MethodOptions = None,
    prompt_format: Literal["auto", "text", "json"] = opt.prompt_flag(
        "auto", help="auto: JSON in *.json files and where the prompt begins with {."
    ),
    options: Annotated[dict[str, Any], opt.generation_options()],
    enable_thinking: opt.Thinking = None,
    loading: Loading,
    stream: bool | None = opt.output_flag(
        None, "--stream/--no-stream", help="Text as it comes. Default: on a terminal."
    ),
    as_json: opt.Json = False,
) -> None:
    """Answer prompts under a method.

    A prompt is a text with documents between [[rm:doc]] and [[/rm:doc]], or JSON with prefix,
    documents and suffix; several go through the model together. The text goes to standard output,
    everything else to standard error.
    """
    can_stream = not as_json and options["num_beams"] == 1 and len(prompt) == 1
    if stream and not can_stream:
        raise UnsupportedGenerationError(
            "--stream shows one text: leave out --json, and pass one prompt and --beams 1."
        )
    options["missing_documents_hint"] = _MARKING
    # What can be refused without the model is refused before it is loaded.
    contexts = [read_prompt(source, prompt_format) for source in prompt]
    chosen = opt.chosen_method(method, method_option)
    request = opt.checked_request(options, enable_thinking)
    loaded = load(model, loading, method=chosen)
    if model is None and not as_json:
        console.tell_of_default()
    if can_stream and (sys.stdout.isatty() if stream is None else stream):
        with loaded.stream(contexts[0], **request) as pieces:
            for piece in pieces:
                console.print_text(piece, end="")
            console.print_text("")
            generations = [pieces.result]
    else:
        generations = loaded.batch(contexts, **request)
        if as_json:
            answers = [answer.to_dict() for answer in generations]
            console.print_json(answers[0] if len(answers) == 1 else answers)
            return
        for source, generation in zip(prompt, generations, strict=True):
            text = generation.text
            console.print_text(text if len(prompt) == 1 else f"==> {source} <==\n{text}\n")
    for generation in generations:
        # Dropped documents and a drawn seed are said to logs and scripts too.
        if sys.stderr.isatty() or generation.dropped_documents or generation.seed is not None:
            console.show_facts(generation)


def read_prompt(source: str, kind: str = "auto") -> ContextPrompt:
    """The prompt in a file, or on standard input for ``-``.

    Markers in it count whoever wrote them: the file is named as a prompt. Text that is not to be
    trusted goes into JSON, or through `rag_middle.escape` on its way into the file.

    Raises:
        PromptError: there is no such file, or it is neither UTF-8 text nor JSON that says a prompt.
        MarkerError: markers are unbalanced, nested or stray.
    """
    try:
        read = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
        text = read.decode("utf-8-sig")
    except (OSError, ValueError) as error:
        raise PromptError(
            f"The prompt file {source!r} cannot be read ({reason(error)}). Pass the path of a "
            "file in UTF-8, or - to read standard input."
        ) from error
    looks_like_json = source.endswith(".json") or text.lstrip().startswith("{")
    if kind == "text" or (kind == "auto" and not looks_like_json):
        return parse(text, trusted=True)
    try:
        content = parse_json(text)
        listed = content.pop("documents", [])
        if not isinstance(listed, list):
            raise TypeError("'documents' is no list")
        documents = [it if isinstance(it, str) else Document(**it) for it in listed]
        return ContextPrompt(documents=documents, **content)
    except (AttributeError, TypeError, ValueError) as error:
        raise PromptError(
            f"The prompt in {source!r} is no JSON that says one: {error}. Write an object with "
            "prefix, documents, suffix and separator, a document as a string or an object with "
            "text, title, id and metadata, or pass --prompt-format text if it is a text."
        ) from error
