"""A calibration as one HTML page, in the visual language of the other reports."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rag_middle.calibration.examples import Example
from rag_middle.evaluation import Estimate
from rag_middle.evaluation.conclusions import comparisons
from rag_middle.evaluation.pages import render
from rag_middle.evaluation.plots import COLOURS, draw_lines, new_figure
from rag_middle.evaluation.wrong_answers import (
    AskedQuestion,
    Reply,
    most_wrong,
    shown_documents,
)
from rag_middle.files import expanded, write_files
from rag_middle.profiles import Profile

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_CANDIDATES = 2000  # points of the chart


def write_calibration(
    profile: Profile, wrong: Sequence[AskedQuestion], path: str | Path, *, command: str = ""
) -> Path:
    """Write the page of a calibration.

    Args:
        wrong: `Calibration.wrong`.

    Returns:
        The path.

    Raises:
        MissingExtraError: matplotlib is not installed.
        OutputWriteError: the file cannot be written.
    """
    path = expanded(path)
    page = calibration_page(profile, wrong, command=command)
    write_files(path.parent, {path.name: page.encode()})
    return path


def calibration_page(
    profile: Profile, wrong: Sequence[AskedQuestion] = (), *, command: str = ""
) -> str:
    """The page as text; arguments as for `write_calibration`.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    held_out = profile.scores.get("held_out")
    lines: dict[str, list[Estimate]] = {}
    rows: list[dict[str, Any]] = []
    charts: list[Figure] = []
    if held_out:
        for place in held_out["places"]:
            row = {name: Estimate(**place[name]) for name in ("before", "after")}
            row["gain"] = _difference(place["gain"])
            rows.append({"name": f"at {place['place']}", **row})
        lines = {
            "none": [row["before"] for row in rows],
            profile.method: [row["after"] for row in rows],
        }
        positions = [place["place"] for place in held_out["places"]]
        figure, [axes] = new_figure()
        draw_lines(axes, lines, positions)
        axes.set_xlabel("Position of the gold document")
        axes.set_ylabel("Accuracy, %")
        axes.set_title("Held-out questions; bars: 95 % intervals", fontsize=10)
        charts.append(figure)
        for name, key in (("worst position", "gain_of_worst_place"), ("mean", "gain_of_mean")):
            gain = _difference(held_out[key])
            rows.append({"name": name, "before": None, "after": None, "gain": gain})
    trace = profile.search.get("trace") or []
    candidates = _scored(trace)
    if candidates:
        charts.append(_search(candidates))
    return render(
        "calibration.html.j2",
        package="rag_middle.calibration",
        charts=charts,
        profile=profile,
        answer=_answer(profile),
        settings=json.dumps(dict(profile.options)) if profile.options else "",
        lines=lines,
        rows=rows,
        questions=held_out["questions"] if held_out else 0,
        comparisons=comparisons(1),
        candidates=len(trace),
        wrong=wrong,
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        command=command,
    )


def held_out_questions(
    examples: Sequence[Example], right: Mapping[str, str]
) -> tuple[AskedQuestion, ...]:
    """The held-out questions with the most wrong answers.

    Args:
        examples: every question at the same positions.
        right: by label, ``"1"`` for each example that was answered right.
    """
    by_question: dict[str, list[int]] = {}
    for index, example in enumerate(examples):
        by_question.setdefault(example.question, []).append(index)
    asked = []
    for indices in by_question.values():
        indices.sort(key=lambda index: examples[index].position)
        first = examples[indices[0]]
        documents = list(first.prompt.documents)
        gold = documents.pop(first.position)
        asked.append(
            AskedQuestion(
                question=first.prompt.suffix.strip(),
                answers=first.answers or (first.answer.strip(),),
                documents=shown_documents(gold, documents),
                conditions=tuple(f"at {examples[index].position}" for index in indices),
                replies={
                    label: tuple(Reply(text=None, right=flags[index] == "1") for index in indices)
                    for label, flags in right.items()
                },
            )
        )
    return most_wrong(asked)


def _difference(numbers: Mapping[str, float]) -> Estimate:
    """A gain of the profile; exact where no resample differs."""
    exact = not any(numbers.values())
    return Estimate(**numbers, exact=exact)


def _answer(profile: Profile) -> str:
    if profile.recommended is None:
        return "Not known: it was not checked on held-out questions."
    if profile.recommended:
        return "Yes: the worst position gains significantly on held-out questions."
    return "No: not recommended."


def _search(candidates: Sequence[tuple[int, float]]) -> Figure:
    """The score of every candidate, and the best so far."""
    figure, [axes] = new_figure(height=3)
    numbers, scores = zip(*candidates, strict=True)
    axes.step(numbers, list(accumulate(scores, max)), where="post", color=COLOURS[1])
    axes.plot(numbers, scores, "o", markersize=3, color=COLOURS[2])
    axes.set_xlabel("Candidate number")
    axes.set_ylabel("Score")
    axes.set_title("Score of every candidate, and the best so far", fontsize=10)
    return figure


def _scored(trace: Sequence[Mapping[str, Any]]) -> list[tuple[int, float]]:
    """Number and score of the candidates that have one; of dropped ones no score is final."""
    return [
        (number, entry["score"])
        for number, entry in enumerate(trace[:_MOST_CANDIDATES])
        if entry.get("complete") and isinstance(entry.get("score"), int | float)
    ]
