"""The search of each method: which settings are tried, and in which order."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from rag_middle.calibration.searches.base import Search
from rag_middle.calibration.searches.channels import ChannelSearch
from rag_middle.calibration.searches.genetic import LayerSearch
from rag_middle.calibration.searches.grids import (
    GroupSearch,
    HeadSearch,
    InitialTokenSearch,
    RatioSearch,
    RetrievalHeadSearch,
)
from rag_middle.errors import ConfigError
from rag_middle.registry import suggest

#: By the name of the method.
SEARCHES: dict[str, type[Search]] = {
    search.method: search
    for search in (
        ChannelSearch,
        LayerSearch,
        InitialTokenSearch,
        RatioSearch,
        HeadSearch,
        GroupSearch,
        RetrievalHeadSearch,
    )
}

#: Named settings of a search.
PRESETS: dict[str, dict[str, Any]] = {"lpes:paper": {"as_in_paper": True}}


def make_search(name: str, options: Mapping[str, Any] | None = None) -> Search:
    """The search for a method, by name and parameters.

    Args:
        name: of the method; ``"lpes:paper"`` for the search of LPES as the paper runs it.
        options: parameters of the search.

    Raises:
        ConfigError: the method has no search, or the search no such parameter.
    """
    preset = PRESETS.get(name, {})
    method = name.partition(":")[0] if preset else name
    if method not in SEARCHES:
        names = [*SEARCHES, *PRESETS]
        raise ConfigError(
            f"No search fits the settings of {name}.{suggest(name, names)} Methods: "
            f"{', '.join(names)}."
        )
    search = SEARCHES[method]
    parameters = [field.name for field in fields(search)]
    for option in options or {}:
        if option not in parameters:
            raise ConfigError(
                f"The search for {method} has no option {option!r}.{suggest(option, parameters)} "
                f"Options: {', '.join(parameters)}."
            )
    return search(**{**preset, **(options or {})})
