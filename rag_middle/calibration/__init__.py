"""Fit a method's settings to a model, and keep them as a profile.

::

    examples, held_out = draw_examples(task, "lpes")
    calibration = calibrate(model, "lpes", examples, held_out, out="my-model.json")
    print(calibration.verdict)

``"lpes:paper"`` in both calls is the paper's search, at the paper's sizes.

The objective is any function of a method; the built-in one is the mean over `Example`s, which
`draw_examples` takes from the evaluation's tasks.
"""

from rag_middle.calibration.calibrate import Calibration, SearchCost, calibrate
from rag_middle.calibration.channels import ChannelSearch, mean_hidden_states, random_texts
from rag_middle.calibration.curves import CurveSearch, LayerSearch
from rag_middle.calibration.drawing import draw_examples
from rag_middle.calibration.grids import (
    GroupSearch,
    HeadSearch,
    InitialTokenSearch,
    RatioSearch,
    RetrievalHeadSearch,
)
from rag_middle.calibration.objective import Example, ExampleObjective, Outcome
from rag_middle.calibration.scoring import FromDisk
from rag_middle.calibration.search import Search
from rag_middle.calibration.searches import PRESETS, SEARCHES, make_search

__all__ = [
    "PRESETS",
    "SEARCHES",
    "Calibration",
    "ChannelSearch",
    "CurveSearch",
    "Example",
    "ExampleObjective",
    "FromDisk",
    "GroupSearch",
    "HeadSearch",
    "InitialTokenSearch",
    "LayerSearch",
    "Outcome",
    "RatioSearch",
    "RetrievalHeadSearch",
    "Search",
    "SearchCost",
    "calibrate",
    "draw_examples",
    "make_search",
    "mean_hidden_states",
    "random_texts",
]
