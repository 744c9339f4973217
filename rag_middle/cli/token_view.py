"""``--show-tokens``: the prompt as the model reads it, coloured by part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rag_middle.cli.console import printable
from rag_middle.wording import counted

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from rag_middle.tokens import TokenizedPrompt, Tokenizer

__all__ = ["described_text", "described_tokens", "show_text", "show_tokens"]

# Neighbouring documents differ in colour; of neighbouring tokens, every second one is inverted.
_DOCUMENT_COLOURS = ("green", "cyan", "magenta", "blue")
_OUTSIDE_COLOUR = "yellow"


def described_tokens(tokenizer: Tokenizer, prompt: TokenizedPrompt) -> dict[str, Any]:
    """Plain data for JSON: the tokens of each part, and their number."""
    documents = [
        {"id": document_id, **_part(tokenizer, ids)}
        for document_id, ids in zip(prompt.document_ids, prompt.documents_ids, strict=True)
    ]
    return {
        "count": len(prompt),
        "prefix": _part(tokenizer, prompt.prefix_ids),
        "documents": documents,
        "suffix": _part(tokenizer, prompt.suffix_ids),
    }


def show_tokens(out: Console, tokenizer: Tokenizer, prompt: TokenizedPrompt) -> None:
    """Print every token, part by part, each with a heading that counts."""
    from rich.text import Text

    parts = [("prefix", prompt.prefix_ids, _OUTSIDE_COLOUR)]
    for index, ids in enumerate(prompt.documents_ids):
        name = prompt.document_ids[index]
        heading = f"document {index}" + (f" ({printable(name)})" if name else "")
        parts.append((heading, ids, _DOCUMENT_COLOURS[index % len(_DOCUMENT_COLOURS)]))
    parts.append(("suffix", prompt.suffix_ids, _OUTSIDE_COLOUR))
    for heading, ids, colour in parts:
        out.print(Text(f"{heading}: {counted(len(ids), 'token')}", f"bold {colour}"))
        if ids:
            out.print(_coloured(tokenizer, ids, colour), soft_wrap=True)
    documents = sum(map(len, prompt.documents_ids))
    summary = (
        f"{counted(len(prompt), 'token')}: prefix {len(prompt.prefix_ids)} + "
        f"{counted(len(prompt.documents_ids), 'document')} {documents} + "
        f"suffix {len(prompt.suffix_ids)}"
    )
    out.print(Text(summary, "bold"))


def described_text(tokenizer: Tokenizer, prompt: TokenizedPrompt) -> dict[str, Any]:
    """Plain data for JSON: the text of each part as the model reads it, control tokens included."""
    return {
        "prefix": _text(tokenizer, prompt.prefix_ids),
        "documents": [_text(tokenizer, ids) for ids in prompt.documents_ids],
        "suffix": _text(tokenizer, prompt.suffix_ids),
    }


def show_text(out: Console, parts: Mapping[str, Any]) -> None:
    """Print what `described_text` gives; neighbouring documents differ in colour.

    Where only the ``text`` of the whole prompt is known, it is printed as it is.
    """
    from rich.text import Text

    if "text" in parts:
        out.print(Text(printable(parts["text"])), soft_wrap=True)
        return
    shown = Text(printable(parts["prefix"]), _OUTSIDE_COLOUR)
    for index, document in enumerate(parts["documents"]):
        shown.append(printable(document), _DOCUMENT_COLOURS[index % len(_DOCUMENT_COLOURS)])
    out.print(shown.append(printable(parts["suffix"]), _OUTSIDE_COLOUR), soft_wrap=True)


def _text(tokenizer: Tokenizer, ids: tuple[int, ...]) -> str:
    text = tokenizer.decode(
        list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
    )
    return "".join(text)


def _part(tokenizer: Tokenizer, ids: tuple[int, ...]) -> dict[str, Any]:
    return {"count": len(ids), "ids": list(ids), "tokens": _texts(tokenizer, ids)}


def _texts(tokenizer: Tokenizer, ids: tuple[int, ...]) -> list[str]:
    """One by one; bytes of a character that several tokens share show as replacement signs."""
    return ["".join(tokenizer.decode([each])) for each in ids]


def _coloured(tokenizer: Tokenizer, ids: tuple[int, ...], colour: str) -> Text:
    from rich.text import Text

    shown = Text()
    for index, text in enumerate(_texts(tokenizer, ids)):
        # A token of nothing but line breaks must be seen too.
        visible = printable(text).replace("\n", "⏎\n")
        shown.append(visible, colour if index % 2 == 0 else f"{colour} reverse")
    return shown
