"""The page: one HTML file that loads nothing, beside the picture and the data."""

from __future__ import annotations

import base64
import io
import json
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import jinja2

from rag_middle.demo.demonstration import Demonstration
from rag_middle.demo.examples import ORDERS
from rag_middle.demo.files import DemoFiles
from rag_middle.demo.picture import draw_curves
from rag_middle.demo.wording import findings, how_measured, in_percent, with_interval
from rag_middle.evaluation.measurement import BASELINE
from rag_middle.files import write_files

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["html_page", "write_demonstration"]

_DPI = 200


def write_demonstration(
    shown: Demonstration, folder: str | Path, *, command: str = ""
) -> DemoFiles:
    """Write ``demo.html``, ``demo.png`` and ``demo.json``.

    Args:
        shown: what to write.
        folder: made if it is not there.
        command: that repeats it, shown on the page.

    Raises:
        MissingExtraError: matplotlib is not installed.
        OutputWriteError: the folder cannot be written to.
    """
    figure = draw_curves(shown)
    data = {**shown.to_dict(), "findings": list(findings(shown)), "repeat": command}
    contents = {
        "demo.png": _image(figure, "png"),
        "demo.json": (json.dumps(data, indent=2, allow_nan=False) + "\n").encode(),
        "demo.html": html_page(shown, command=command, figure=figure).encode(),
    }
    write_files(folder, contents)
    html, png, data_file = (Path(folder) / f"demo.{kind}" for kind in ("html", "png", "json"))
    return DemoFiles(html=html, png=png, json=data_file)


def html_page(shown: Demonstration, *, command: str = "", figure: Figure | None = None) -> str:
    """The page as a text.

    Args:
        shown: what it is about.
        command: that repeats it.
        figure: from `draw_curves`, if it is there already.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    source = resources.files(__package__).joinpath("page.html.j2").read_text(encoding="utf-8")
    # Answers are a model's, names anybody's: everything is escaped.
    page = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    page.filters["percent"] = in_percent
    page.filters["interval"] = with_interval
    drawn = base64.b64encode(_image(figure or draw_curves(shown), "svg")).decode("ascii")
    return page.from_string(source).render(
        shown=shown,
        curves=shown.curves,
        orders=ORDERS,
        baseline=BASELINE,
        findings=findings(shown),
        how_measured=how_measured(shown),
        # An image of its own, so that the ids inside its SVG meet no others.
        chart=f"data:image/svg+xml;base64,{drawn}",
        command=command,
    )


def _image(figure: Figure, kind: str) -> bytes:
    target = io.BytesIO()
    # No date: the same results give the same picture.
    metadata = {"Date": None} if kind == "svg" else {}
    figure.savefig(target, format=kind, dpi=_DPI, metadata=metadata)
    return target.getvalue()
