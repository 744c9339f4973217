"""Fit a method's settings to a model, and keep them as a profile.

::

    examples, held_out = draw_examples(task, "lpes")
    calibration = calibrate(model, "lpes", examples, held_out, out="my-model.json")
    print(calibration.verdict)

``"lpes:paper"`` in both calls is the paper's search, at the paper's sizes.

The objective is any function of a method; the built-in one is the mean over `Example`s, which
`draw_examples` takes from the evaluation's tasks.
"""

from rag_middle.calibration.calibrate import Calibration, calibrate
from rag_middle.calibration.cost import Estimate
from rag_middle.calibration.drawing import draw_examples
from rag_middle.calibration.evaluator import Candidate, Evaluator
from rag_middle.calibration.examples import Example, ScoringScheme, digest
from rag_middle.calibration.hidden_states import mean_hidden_states, random_texts
from rag_middle.calibration.jobs import FromDisk, Job, Scoring, Team, score_group, scored
from rag_middle.calibration.objective import (
    Criterion,
    EntropyObjective,
    ExampleObjective,
    Objective,
    Outcome,
)
from rag_middle.calibration.racing import Race
from rag_middle.calibration.searches import (
    PRESETS,
    SEARCHES,
    ChannelSearch,
    GroupSearch,
    HeadSearch,
    InitialTokenSearch,
    LayerSearch,
    RatioSearch,
    RetrievalHeadSearch,
    Search,
    SearchInputs,
    SearchResult,
    make_search,
)
from rag_middle.calibration.searches.genetic import CurveSearch, evolve
from rag_middle.calibration.verdict import HeldOutCheck, check_held_out

__all__ = [
    "PRESETS",
    "SEARCHES",
    "Calibration",
    "Candidate",
    "ChannelSearch",
    "Criterion",
    "CurveSearch",
    "EntropyObjective",
    "Estimate",
    "Evaluator",
    "Example",
    "ExampleObjective",
    "FromDisk",
    "GroupSearch",
    "HeadSearch",
    "HeldOutCheck",
    "InitialTokenSearch",
    "Job",
    "LayerSearch",
    "Objective",
    "Outcome",
    "Race",
    "RatioSearch",
    "RetrievalHeadSearch",
    "Scoring",
    "ScoringScheme",
    "Search",
    "SearchInputs",
    "SearchResult",
    "Team",
    "calibrate",
    "check_held_out",
    "digest",
    "draw_examples",
    "evolve",
    "make_search",
    "mean_hidden_states",
    "random_texts",
    "score_group",
    "scored",
]
