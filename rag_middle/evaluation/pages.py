"""HTML pages in one visual language: a file each, which loads nothing.

``templates/page.html.j2`` is the frame of all of them, with their style sheet; reports of other
parts of the package bring a template of their own beside their module.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import jinja2
from markupsafe import Markup

from rag_middle.evaluation.plots import image
from rag_middle.evaluation.statistics import Estimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_HERE = "rag_middle.evaluation"


def render(
    template: str,
    *,
    package: str = _HERE,
    charts: Mapping[str, Figure] = MappingProxyType({}),
    **context: Any,
) -> str:
    """A page as text; whatever is put into it is escaped.

    Args:
        template: its file name, in ``templates`` of the package.
        charts: pictures for the template, by name.
    """
    # Labels, names, questions and answers are anybody's text: all of it is escaped.
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(package), jinja2.PackageLoader(_HERE)]),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"cell": _estimate_cell, "code_spans": _code_spans}
    pictures = {
        name: data_url(image(chart, "svg"), "image/svg+xml") for name, chart in charts.items()
    }
    return environment.get_template(template).render(charts=pictures, **context)


def data_url(content: bytes, kind: str) -> str:
    """A picture as part of a page, apart from it: its text, ids and styles are its own."""
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"


def _estimate_cell(estimate: Estimate | None, *, share: bool, signed: bool = False) -> Markup:
    """The value, and its interval below it; arguments as for `Estimate.text`."""
    if estimate is None:
        return Markup("–")
    if estimate.exact:
        return Markup("0<small>none seen</small>")
    value, _, interval = estimate.text(share=share, signed=signed).partition(" ")
    return Markup("{}<small>{}</small>").format(value, interval)


def _code_spans(text: str) -> Markup:
    """What is between backticks as code; everything is escaped."""
    parts = [
        Markup("<code>{}</code>" if index % 2 else "{}").format(part)
        for index, part in enumerate(text.split("`"))
    ]
    return Markup("").join(parts)
