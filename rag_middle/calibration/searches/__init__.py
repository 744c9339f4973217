"""The search of each method: which settings are tried, and in which order."""

from rag_middle.calibration.searches.areas import InitialTokenSearch
from rag_middle.calibration.searches.base import Found, Search, layer_ranges
from rag_middle.calibration.searches.channels import ChannelSearch
from rag_middle.calibration.searches.layer_factors import LayerSearch
from rag_middle.calibration.searches.ratios import RatioSearch

__all__ = [
    "SEARCHES",
    "ChannelSearch",
    "Found",
    "InitialTokenSearch",
    "LayerSearch",
    "RatioSearch",
    "Search",
    "layer_ranges",
]

#: By the name of the method.
SEARCHES: dict[str, type[Search]] = {
    kind.method: kind for kind in (ChannelSearch, LayerSearch, InitialTokenSearch, RatioSearch)
}
