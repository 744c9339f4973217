"""A demonstration that is made up."""

import json
from pathlib import Path
from typing import Any


def made_up() -> dict[str, Any]:
    """A demonstration with one question."""
    text = Path(__file__).with_name("measurement.json").read_text(encoding="utf-8")
    example = {
        "question": "Is it <so>?",
        "answers": ["yes"],
        "sources": [{"title": "Page"}],
        "replies": [{"method": "none", "best": "first", "text": "<b>yes</b>", "right": True}],
    }
    measured = {**json.loads(text), "metric": "log_likelihood"}
    for curve in measured["curves"]:
        del curve["accuracy"]
    return {"examples": [example], "measured": measured, "full": json.loads(text)}
