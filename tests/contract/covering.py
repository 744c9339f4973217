"""Which families meet which methods in the suite: a covering design of the full product.

The full product, every method on every family in every attention implementation, is some ten
thousand tests. Most of them repeat each other: Llama, Mistral and Granite compute attention alike,
and LPES and position interpolation change it alike. `covering` keeps as many of a test's cases as
it takes that every family and every method occurs, and

- where a test is about what methods compute (``by="method"``): every method meets every trait that
  some family has (`combination_of`: grouped keys, a window, an attention sink, partial rotation,
  ...) and every attention implementation, and every group of methods that share code (`GROUPS`)
  meets every combination of traits;
- where it is about what is around them, such as caches, beams and what is left behind
  (``by="group"``): every group of methods meets every trait and every attention implementation.

A test that others back up takes a sample of these (``one_in``). The rest runs with
``--all-pairs``, which ``make contract`` and ``make check`` pass.
"""

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import fields
from functools import lru_cache
from typing import Literal

from tests.families import FAMILIES

__all__ = ["GROUPS", "combination_of", "covering", "group_of"]

Case = tuple[str, ...]
Requirement = tuple[object, ...]
By = Literal["method", "group"]

#: Methods that change the same thing by the same code, by what their names begin with.
GROUPS: dict[str, tuple[str, ...]] = {
    "order_free": ("pine", "rotor"),
    "blocks": ("no_inter", "parallel", "set_based", "structured", "ape"),
    "positions": ("lpes", "position_interpolation", "attention_buckets"),
    "positions_by_head": ("ms_poe", "moice", "self_extend"),
    "hidden": ("positional_hidden_states",),
    "weights": ("siw", "zero_tuning", "dsas", "compose"),
    "twice": ("dysco",),
    "blended": ("cacheblend",),
    "arranging": (
        "none",
        "long_context_reorder",
        "measured_order",
        "permutation",
        "attn_rank_profile",
        "prompt_repetition",
    ),
    "looking": ("attn_rank", "attention_sorting", "attention_calibration"),
}
#: Frequencies that a model divides once, and those that follow the length of the input.
_ROPE = {
    **dict.fromkeys(("linear", "yarn", "llama3"), "scaled"),
    **dict.fromkeys(("dynamic", "longrope"), "changing"),
}


def group_of(label: str) -> str | None:
    """The group of a method's test; None where the label names no method."""
    groups = {prefix: group for group, prefixes in GROUPS.items() for prefix in prefixes}
    fitting = [prefix for prefix in groups if label.startswith(prefix)]
    return groups[max(fitting, key=len)] if fitting else None


def combination_of(family: str) -> frozenset[tuple[str, object]]:
    """What sets a family apart from others, as one value per trait."""
    traits = FAMILIES[family].traits
    values: dict[str, object] = {
        field.name: getattr(traits, field.name) for field in fields(traits)
    }
    del values["window"]  # of 8 tokens wherever there is one
    values["rotary_size"] = traits.rotary_size < traits.head_size
    values["rope_type"] = _ROPE.get(traits.rope_type, traits.rope_type)
    for kind in ("sliding_layers", "nope_layers", "linear_layers"):
        values[kind] = bool(values[kind])
    return frozenset(values.items())


def covering(cases: Iterable[Case], by: By = "method") -> list[Case]:
    """The cases of one test that the suite runs, in their order.

    Args:
        cases: a family, then labels: a method, an attention implementation, a number format, ...
            Without a method every trait occurs under every label, and not every family does.
        by: whether each method has to meet every trait, or one of each group.
    """
    return list(_covering(tuple(cases), by))


@lru_cache
def _covering(cases: tuple[Case, ...], by: By) -> Sequence[Case]:
    # Greedily: the case that meets most of what is still to be met. Among equals a checksum
    # decides, so that methods are spread over the families that are alike.
    checksums = {case: zlib.crc32(repr(case).encode()) for case in cases}
    unmet = {case: _requirements(case, by) for case in cases}
    chosen: set[Case] = set()
    while unmet := {case: needs for case, needs in unmet.items() if needs}:
        best = max(unmet, key=lambda case: (len(unmet[case]), checksums[case]))
        chosen.add(best)
        met = unmet.pop(best)
        for needs in unmet.values():
            needs -= met
    return tuple(case for case in cases if case in chosen)


def _requirements(case: Case, by: By) -> set[Requirement]:
    family, *labels = case
    traits = combination_of(family)
    groups = {label: group for label in labels if (group := group_of(label))}
    ways = [label for label in labels if label not in groups]
    if not groups:
        return {(way, trait) for way in ways or [""] for trait in traits}
    requirements: set[Requirement] = {("family", family)}
    for method, group in groups.items():
        one = group if by == "group" else method
        requirements |= {("method", method)} | {(one, other) for other in (*traits, *ways)}
        if by == "method":
            # All layers with a window: then none sees everything.
            windows_only = len(FAMILIES[family].traits.sliding_layers) == 3
            requirements.add((group, traits, windows_only))
    return requirements
