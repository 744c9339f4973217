"""The search of each method, by name."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from rag_middle.calibration.channels import ChannelSearch
from rag_middle.calibration.curves import CurveSearch
from rag_middle.calibration.grids import (
    GroupSearch,
    HeadSearch,
    InitialTokenSearch,
    RatioSearch,
    RetrievalHeadSearch,
)
from rag_middle.calibration.search import Search
from rag_middle.errors import ConfigError
from rag_middle.registry import check_names, suggest

#: By the name of the method.
SEARCHES: dict[str, type[Search]] = {
    search.method: search
    for search in (
        ChannelSearch,
        CurveSearch,
        InitialTokenSearch,
        RatioSearch,
        HeadSearch,
        GroupSearch,
        RetrievalHeadSearch,
    )
}

#: Searches as the papers run them.
PRESETS: dict[str, dict[str, Any]] = {
    f"{method}:paper": {"as_in_paper": True} for method in ("lpes", "positional_hidden_states")
}


def make_search(name: str, options: Mapping[str, Any] | None = None) -> Search:
    """The search for a method, by name and parameters.

    Args:
        name: of the method; with ``":paper"`` for the search as the paper runs it (`PRESETS`).
        options: parameters of the search.

    Raises:
        ConfigError: the method has no search, or the search no such parameter.
        MethodConfigError: a parameter with a value that it cannot have.
    """
    preset = PRESETS.get(name, {})
    method = name.partition(":")[0] if preset else name
    if method not in SEARCHES:
        names = [*SEARCHES, *PRESETS]
        raise ConfigError(
            f"There is no calibration search for {name}.{suggest(name, names)} Methods: "
            f"{', '.join(names)}."
        )
    search = SEARCHES[method]
    parameters = [field.name for field in fields(search)]
    check_names(f"The search for {method}", options or {}, parameters, ConfigError)
    return search(**{**preset, **(options or {})})
