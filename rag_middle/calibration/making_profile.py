"""From what a search found to the profile that says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from rag_middle.calibration.held_out import HeldOut
from rag_middle.calibration.objective import Outcome
from rag_middle.calibration.searches import Found
from rag_middle.methods import Method, NoMethod
from rag_middle.profiles import ModelFacts, Profile

__all__ = ["made_profile"]


def made_profile(
    identity: Mapping[str, Any],
    facts: ModelFacts,
    before: Outcome,
    found: Found,
    checked: HeldOut | None,
    trace: list[dict[str, Any]],
) -> Profile:
    """The best settings, where they come from, and whether they help.

    Args:
        identity: of the search, as in its journal.
        facts: of the model.
        before: what the unmodified model got.
        found: by the search.
        checked: the winner on held-out examples; None where it was not checked.
        trace: every candidate with its score.
    """
    candidate, after = found.ranked[0] if found.ranked else (None, None)
    method = candidate.method if candidate else NoMethod()
    better = after is not None and after.score > before.score
    return Profile(
        method=method.name,
        options=_options(method),
        model=facts,
        note=_verdict(before, after, checked),
        recommended=None if checked is None else checked.improves and better,
        seed=identity["seed"],
        software=identity["software"],
        data=identity["data"],
        search={
            "settings": _plain(identity["search"]),
            "criterion": identity["criterion"],
            "checked_by": identity["checked_by"] if checked else None,
            "threads": identity["threads"],
            "max_batch_size": identity["batch"],
            "template": identity["template"],
            **_plain(found.details),
            "trace": trace,
        },
        scores={
            "search": {"before": _told(before), "after": _told(after) if after else None},
            "held_out": checked.scores if checked else None,
        },
    )


def _verdict(before: Outcome, best: Outcome | None, checked: HeldOut | None) -> str:
    """One sentence, or two."""
    if best is None:
        return "No candidate was found: nothing to recommend."
    verdict = "Not checked on held-out prompts: nothing is recommended."
    if checked is not None:
        verdict = checked.verdict
    if best.score > before.score:
        return verdict
    return (
        "No candidate beats the unmodified model on the prompts of the search "
        f"({before.score:.4g}). {verdict}"
    )


def _options(method: Method) -> dict[str, Any]:
    """Parameters that differ from the defaults, in JSON's types."""
    return {
        each.name: _plain(getattr(method, each.name))
        for each in fields(method)  # type: ignore[arg-type]
        if getattr(method, each.name) != each.default
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, tuple | list) else value


def _told(outcome: Outcome) -> dict[str, Any]:
    return {
        "score": outcome.score,
        "log_likelihood": outcome.log_likelihood,
        "right": outcome.right.count("1") / len(outcome.right) if outcome.right else None,
    }
