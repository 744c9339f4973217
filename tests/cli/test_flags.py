"""Messages of the library in the words of the command line."""

from __future__ import annotations

import pytest

from rag_middle.cli.flags import flags_of, in_flags
from rag_middle.cli.generate import generate
from rag_middle.cli.index import index

FLAGS = flags_of(generate, num_beams="--beams")


def test_flags_are_those_of_the_command() -> None:
    assert FLAGS["max_new_tokens"] == "--max-new-tokens"
    assert FLAGS["model"] == "--model"  # rather than -m
    assert FLAGS["as_json"] == "--json"
    assert FLAGS["stream"] == "--stream"  # rather than --stream/--no-stream
    assert "path" not in flags_of(index)  # an argument


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("top_p must be a number, got 3.", "--top-p must be a number, got 3."),
        ("seed must be whole: the seed is", "--seed must be whole: the seed is"),
        ("choose on_overflow='drop_documents'.", "choose --on-overflow drop_documents."),
        ("num_beams=2 and temperature=0.5.", "--beams 2 and --temperature 0.5."),
        ("Build it with rebuild=True (--rebuild).", "Build it with --rebuild."),
        ("the limit: max_file_bytes (--max-file-mib).", "the limit: --max-file-mib."),
        ("hub: Embedder('a/b') (--embedder a/b).", "hub: --embedder a/b."),
        ("that embedder (--embedder x)", "that embedder (--embedder x)"),
    ],
)
def test_arguments_become_options(message: str, expected: str) -> None:
    assert in_flags(message, FLAGS) == expected


@pytest.mark.parametrize(
    "message",
    [
        "got 'top_p must be' and 'a seed=3'.",  # quoted: somebody else's words
        "The model's method cannot read the prompt.",
        "not_top_p and --top-p stay, like top_points.",
    ],
)
def test_other_words_stay(message: str) -> None:
    assert in_flags(message, FLAGS) == message
