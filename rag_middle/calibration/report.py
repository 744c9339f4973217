"""A calibration as one HTML page, in the visual language of the other reports."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rag_middle.evaluation import Estimate
from rag_middle.evaluation.conclusions import comparisons
from rag_middle.evaluation.plots import draw_lines, new_figure
from rag_middle.evaluation.report import render
from rag_middle.files import expanded, write_files
from rag_middle.profiles import Profile

_ANSWERS = {
    None: "Not known: it was not checked on held-out questions.",
    True: "Yes: the worst position gains significantly on held-out questions.",
    False: "No: not recommended.",
}


def write_calibration(profile: Profile, path: str | Path, *, command: str = "") -> Path:
    """Write the page of a calibration, with the command that repeats it; returns its path.

    Raises:
        MissingExtraError: matplotlib is not installed.
        OutputWriteError: the file cannot be written.
    """
    held_out = profile.scores.get("held_out")
    rows, charts = [], {}
    if held_out:
        places = held_out["places"]
        rows = [{"name": f"at {place['place']}", **_estimates(place)} for place in places]
        figure, [axes] = new_figure()
        names = {"none": "before", profile.method: "after"}
        lines = {label: [row[when] for row in rows] for label, when in names.items()}
        draw_lines(axes, lines, [place["place"] for place in places])
        axes.set(xlabel="Position of the gold document", ylabel="Accuracy, %")
        axes.set_title("Held-out questions; bars: 95 % intervals", fontsize=10)
        charts["held out"] = figure
        for name, key in (("worst position", "gain_of_worst_place"), ("mean", "gain_of_mean")):
            rows.append({"name": name, **_estimates({"gain": held_out[key]})})
    page = render(
        "calibration.html.j2",
        package=__package__,
        charts=charts,
        profile=profile,
        answer=_ANSWERS[profile.recommended],
        settings=json.dumps(dict(profile.options)) if profile.options else "",
        rows=rows,
        questions=held_out["questions"] if held_out else 0,
        comparisons=comparisons(1),
        candidates=len(profile.search.get("trace") or ()),
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        command=command,
    )
    path = expanded(path)
    write_files(path.parent, {path.name: page.encode()})
    return path


def _estimates(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Estimates before, after, and of the gain; a gain is exact where no resample differs."""
    made: dict[str, Any] = dict.fromkeys(("before", "after", "gain"))
    for name in made.keys() & numbers.keys():
        exact = name == "gain" and not any(numbers[name].values())
        made[name] = Estimate(**numbers[name], exact=exact)
    return made
