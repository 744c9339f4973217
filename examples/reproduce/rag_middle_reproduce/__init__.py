"""The papers' evaluations: models x tasks x methods from a YAML file; see the README beside it."""

from rag_middle_reproduce.config import EvaluationConfig, ModelConfig, read_config
from rag_middle_reproduce.matrix import Cell, evaluate, markdown_tables

__all__ = [
    "Cell",
    "EvaluationConfig",
    "ModelConfig",
    "evaluate",
    "markdown_tables",
    "read_config",
]
