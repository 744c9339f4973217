"""Models of configurations and of experiments, and how a command line names one."""

from __future__ import annotations

import argparse
from typing import Any

from rag_middle import RagMiddleModel
from rag_middle.small_model import default_model
from rag_middle_reproduce.config import ModelConfig

__all__ = ["add_model_options", "load_by_name", "load_chosen", "load_model"]


def load_by_name(name: str, **options: Any) -> RagMiddleModel:
    """A model that runs without a method; ``small`` is the default one.

    Args:
        name: a folder, a name on the hub, or ``small``.
        options: of `RagMiddleModel.from_pretrained`.

    Raises:
        RagMiddleError: as `RagMiddleModel.from_pretrained`.
    """
    path = default_model() if name == "small" else name
    return RagMiddleModel.from_pretrained(path, **options)


def load_model(entry: ModelConfig, device: str | None) -> RagMiddleModel:
    """The model of an entry of a configuration."""
    return load_by_name(
        entry.name,
        device=device,
        dtype=entry.dtype,
        revision=entry.revision,
        device_map=entry.device_map,
        quantization_config=entry.quantization_config,
        attn_implementation=entry.attn_implementation,
        context_window=entry.context_window,
    )


def add_model_options(parser: argparse.ArgumentParser, *, try_out: str) -> None:
    """Which model, where and in which format, and ``--try-out``, which does what `try_out` says."""
    parser.add_argument("--model", default="small", help="folder, hub name, or small (the default)")
    parser.add_argument("--dtype", default="auto", help="of the weights")
    parser.add_argument("--device", help="cpu, cuda, cuda:1 ...")
    parser.add_argument("--device-map", help="auto spreads the model over all devices")
    parser.add_argument("--quantize", choices=("8bit", "4bit"), help="fewer bits for the weights")
    parser.add_argument(
        "--try-out",
        action="store_true",
        help=f"{try_out} on the default model: numbers mean nothing",
    )


def load_chosen(options: argparse.Namespace, **more: Any) -> RagMiddleModel:
    """The model of `add_model_options`; `more` as `load_by_name`."""
    return load_by_name(
        options.model,
        dtype=options.dtype,
        device=options.device,
        device_map=options.device_map,
        quantization_config=options.quantize,
        **more,
    )
