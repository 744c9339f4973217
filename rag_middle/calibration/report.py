"""A calibration as one HTML page, in the visual language of the other reports."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rag_middle.evaluation import Estimate
from rag_middle.evaluation.conclusions import comparisons
from rag_middle.evaluation.pages import render
from rag_middle.evaluation.plots import draw_lines, new_figure
from rag_middle.files import expanded, write_files
from rag_middle.profiles import Profile

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write_calibration(profile: Profile, path: str | Path, *, command: str = "") -> Path:
    """Write the page of a calibration, with the command that repeats it; returns its path.

    Raises:
        MissingExtraError: matplotlib is not installed.
        OutputWriteError: the file cannot be written.
    """
    held_out = profile.scores.get("held_out")
    rows: list[dict[str, Any]] = []
    charts: dict[str, Figure] = {}
    if held_out:
        places = held_out["places"]
        for place in places:
            before, after = (Estimate(**place[name]) for name in ("before", "after"))
            gain = _difference(place["gain"])
            rows.append(
                {"name": f"at {place['place']}", "before": before, "after": after, "gain": gain}
            )
        lines = {
            "none": [row["before"] for row in rows],
            profile.method: [row["after"] for row in rows],
        }
        figure, [axes] = new_figure()
        draw_lines(axes, lines, [place["place"] for place in places])
        axes.set_xlabel("Position of the gold document")
        axes.set_ylabel("Accuracy, %")
        axes.set_title("Held-out questions; bars: 95 % intervals", fontsize=10)
        charts["held out"] = figure
        for name, key in (("worst position", "gain_of_worst_place"), ("mean", "gain_of_mean")):
            gain = _difference(held_out[key])
            rows.append({"name": name, "before": None, "after": None, "gain": gain})
    answers = {
        None: "Not known: it was not checked on held-out questions.",
        True: "Yes: the worst position gains significantly on held-out questions.",
        False: "No: not recommended.",
    }
    page = render(
        "calibration.html.j2",
        package="rag_middle.calibration",
        charts=charts,
        profile=profile,
        answer=answers[profile.recommended],
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


def _difference(numbers: dict[str, float]) -> Estimate:
    """A gain of the profile; exact where no resample differs."""
    return Estimate(**numbers, exact=not any(numbers.values()))
