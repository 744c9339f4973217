"""The contract as a table: which family takes which method.

Nothing is looked up: every tiny model is examined and every method asked for its plan, which takes
milliseconds. That the plans then do what they should is for the other files of this folder.
"""

import logging
from collections.abc import Iterator

from rag_middle.attention import ModelTraits, model_traits
from rag_middle.errors import UnsupportedArchitectureError
from rag_middle.methods import METHODS, Method
from tests.contract.cases import EXAMPLES, LONG, expected_refusal
from tests.families import FAMILIES

__all__ = ["COLUMNS", "markdown", "refusal"]

#: Methods with a column, by their headings: the registered ones of this package that compose.
COLUMNS: dict[str, Method] = {
    name: next(
        iter([*EXAMPLES[name].active.values(), *EXAMPLES[name].around.values()]),
        EXAMPLES[name].neutral,
    )
    for name, kind in METHODS.items()
    if kind.__module__.startswith("rag_middle.") and name != "compose"
}

_NOTES = {
    "own attention code": (
        "the model computes attention by itself, past transformers' attention interface"
    ),
    "no rotary positions": "positions are not rotary (ALiBi or learned embeddings)",
    "linear attention": (
        "some layers have linear attention, which reads documents in their order whatever else "
        "changes"
    ),
    "unknown rotation": (
        "queries and keys are rotated in a way of the model's own: only the tables of angles can "
        "be changed"
    ),
    "chunks": ("layers attend in chunks, and the question sees only documents of its own"),
    "norm after rotation": (
        "queries are normalised after the rotation, so they cannot be rotated once per document"
    ),
}


def refusal(method: Method, traits: ModelTraits, family: str) -> str | None:
    """Why the package refuses, in a few words; None where it does not."""
    try:
        method.plan((LONG.tokens,), traits)
    except UnsupportedArchitectureError as error:
        reason = expected_refusal(method, FAMILIES[family].traits, family)
        if reason is None:
            raise RuntimeError("refused, and cases.py does not expect it") from error
        return reason
    return None


def markdown() -> str:
    """Which families take every method, and what the others refuse."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
    found = {name: model_traits(family.build()) for name, family in FAMILIES.items()}
    takes_all: list[str] = []
    refusing: dict[tuple[str, str], list[str]] = {}  # families by what they refuse, and why
    for name, traits in found.items():
        refused: dict[str, list[str]] = {}
        for column, method in COLUMNS.items():
            if (reason := refusal(method, traits, name)) is not None:
                refused.setdefault(reason, []).append(column)
        if not refused:
            takes_all.append(f"`{name}`")
        for reason, methods in refused.items():
            others = [column for column in COLUMNS if column not in methods]
            shown = "all but " + _names(others) if len(others) < len(methods) else _names(methods)
            refusing.setdefault((shown, reason), []).append(name)
    rows = [
        (_names(families), shown, _NOTES[reason]) for (shown, reason), families in refusing.items()
    ]
    return "\n".join(
        (
            f"## {len(FAMILIES)} families, {len(COLUMNS)} methods",
            "",
            f"These take every method: {', '.join(takes_all)}.",
            "",
            "The others refuse some, with an `UnsupportedArchitectureError` that says why and what "
            "to use instead:",
            "",
            *_table(("families", "refuse", "because"), rows),
        )
    )


def _names(methods: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in methods)


def _table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> Iterator[str]:
    yield "| " + " | ".join(heads) + " |"
    yield "| --- " * len(heads) + "|"
    yield from ("| " + " | ".join(row) + " |" for row in rows)
