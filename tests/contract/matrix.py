"""The contract as a table: which family takes which method, and what each family is like.

Nothing is looked up: every tiny model is examined and every method asked for its plan, which takes
milliseconds. That the plans then do what they should is for the other files of this folder.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from rag_middle.attention import ModelTraits, model_traits
from rag_middle.errors import UnsupportedArchitectureError
from rag_middle.methods import METHODS, Method
from tests.contract.cases import EXAMPLES, LONG, expected_refusal
from tests.contract.half import SETTINGS
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
    """Which families take every method, what the others refuse, and what each family is like."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
    found = {name: model_traits(family.build()) for name, family in FAMILIES.items()}
    takes_all, rows = [], []
    reasons: dict[str, int] = {}
    for name, traits in found.items():
        refused: dict[str, list[str]] = {}
        for column, method in COLUMNS.items():
            if (reason := refusal(method, traits, name)) is not None:
                refused.setdefault(reason, []).append(column)
        if not refused:
            takes_all.append(f"`{name}`")
        for reason, methods in refused.items():
            number = reasons.setdefault(reason, len(reasons) + 1)
            others = [column for column in COLUMNS if column not in methods]
            shown = "all but " + _names(others) if len(others) < len(methods) else _names(methods)
            rows.append((f"`{name}`", shown, f"{reason} ({number})"))
    notes = [f"{number}. *{reason}*: {_NOTES[reason]}." for reason, number in reasons.items()]
    return "\n".join(
        (
            f"## {len(FAMILIES)} families, {len(COLUMNS)} methods",
            "",
            f"These take every method: {', '.join(takes_all)}.",
            "",
            "The others refuse some, with an `UnsupportedArchitectureError` that says why and what "
            "to use instead:",
            "",
            *_table(("family", "refuses", "as"), rows),
            "",
            *notes,
            "",
            "## Half precision",
            "",
            *_half_precision(),
            "",
            "## What the families are like",
            "",
            "As found by examining the models, which is what methods go by.",
            "",
            *_table(
                ("family", "RoPE", "pairs", "rotated", "heads", "layers that differ", "also"),
                [(f"`{name}`", *_traits_row(traits)) for name, traits in found.items()],
            ),
        )
    )


def _names(methods: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in methods)


def _half_precision() -> Iterator[str]:
    """A table of what `test_half_precision.py` runs: families by number format and width."""
    yield (
        "Beside a float32 model of the same weights, in a prompt and one token after it, methods "
        "or families taking turns on `sdpa` and `eager`, at the number formats and widths below, "
        "of which `make test` chooses some:"
    )
    yield ""
    yield (
        "- the error of the method's logits, root mean square over the vocabulary, is below three "
        "times that of the unmodified model in the same number format, at the worst token of "
        "each; at the middle token, below twice;"
    )
    yield (
        "- a left-padded row equals the prompt alone within three times that error, but where "
        "rounding makes one method in six of a family choose otherwise, an expert for example;"
    )
    yield (
        "- the float32 model makes the choices that the half-precision one made (the order of "
        "documents, ranks of heads, experts), and by its own numbers it would have decided at "
        "most 8% of them otherwise, or two."
    )
    yield ""
    for setting in SETTINGS:
        families = ", ".join(f"`{family}`" for family in FAMILIES if family in setting.families)
        if len(setting.families) > len(FAMILIES) // 2:
            families = f"{len(setting.families)} families"
        chosen = (
            "every method that changes attention"
            if setting.methods is None
            else ("methods chosen so that every one meets every number format")
        )
        yield f"- {setting.dtype}, {setting.width} wide: {families}; {chosen};"
    yield ""
    yield (
        "Models of 4096 channels have one layer; the families there stand for the norms that "
        "queries and keys may go through. Methods that only arrange documents run the unmodified "
        "model: for them, the attention weights that they go by are compared on one family."
    )


def _traits_row(traits: ModelTraits) -> Iterator[str]:
    if not traits.layers:
        yield from ("", "", "", "", "", "own attention code")
        return
    layers = list(traits.layers.values())
    rotating = [layer for layer in layers if layer.uses_rope]
    styles = [layer.rotary for layer in rotating if layer.rotary is not None]
    yield traits.rope_type or "none"
    yield styles[0].pairing if styles else ("unknown" if rotating else "")
    yield f"{2 * styles[0].pairs} of {layers[0].head_size}" if styles else ""
    yield f"{layers[0].heads} / {layers[0].kv_heads}"
    sliding = [layer.layer for layer in layers if layer.sliding_window]
    still = [layer.layer for layer in layers if not layer.uses_rope]
    linear = [layer for layer in range(traits.num_layers) if layer not in traits.layers]
    yield ", ".join(
        f"{kind} {_numbers(which, traits.num_layers)}"
        for kind, which in (
            ("sliding", sliding),
            ("NoPE", still if rotating else []),
            ("linear", linear),
        )
        if which
    )
    yield ", ".join(
        word
        for word, holds in (
            ("soft-capped scores", any(layer.softcap for layer in layers)),
            ("sinks", any(layer.sinks for layer in layers)),
            ("norm after rotation", any(layer.norms_after_rope for layer in layers)),
            (
                "not affine in the hidden state",
                not all(layer.affine_projections for layer in layers),
            ),
        )
        if holds
    )


def _numbers(layers: list[int], of: int) -> str:
    return "all" if len(layers) == of else ", ".join(map(str, layers))


def _table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> Iterator[str]:
    yield "| " + " | ".join(heads) + " |"
    yield "| --- " * len(heads) + "|"
    yield from ("| " + " | ".join(row) + " |" for row in rows)
