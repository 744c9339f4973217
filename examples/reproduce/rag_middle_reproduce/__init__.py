"""The papers' evaluations: models x tasks x methods from a YAML file; see the README beside it."""

from rag_middle_reproduce.config import EvaluationConfig, ModelConfig, read_config

__all__ = ["EvaluationConfig", "ModelConfig", "read_config"]
