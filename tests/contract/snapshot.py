"""Everything about a model that a method could leave behind."""

from typing import Any

from torch import Tensor
from transformers import PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

__all__ = ["snapshot"]

Snapshot = dict[str, Any]


def snapshot(model: PreTrainedModel) -> Snapshot:
    """Hooks, attributes, configs, modes and the library's global tables, to compare with ``==``.

    Objects are kept themselves, not their ids: an id may be given anew.
    """
    seen: Snapshot = {
        "attention functions": dict(ALL_ATTENTION_FUNCTIONS.items()),
        "mask functions": dict(ALL_MASK_ATTENTION_FUNCTIONS.items()),
        "generation config": model.generation_config.to_dict(),
        "config": model.config.to_dict(),
        "implementation": model.config._attn_implementation,
    }
    for name, module in model.named_modules(remove_duplicate=False):
        for attribute, value in vars(module).items():
            seen[f"{name}.{attribute}"] = _comparable(value)
        seen[f"{name} class"] = type(module)
    return seen


def _comparable(value: Any) -> Any:
    if isinstance(value, dict):  # hooks, parameters, buffers, submodules
        return {
            # Some rotary modules put their frequencies there anew in every pass.
            key: item.tolist() if key == "inv_freq" else _comparable(item)
            for key, item in value.items()
        }
    if isinstance(value, int | float | str | bool | None):
        return value
    if isinstance(value, Tensor):
        return _Same(value, value._version)
    return _Same(value)


class _Same:
    """Equal to itself only: configs, tensors and functions must be the very same objects."""

    def __init__(self, value: Any, version: int = 0) -> None:
        self.value = value
        self.version = version  # of a tensor: counts changes in place

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _Same) and self.value is other.value and self.version == other.version
        )

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"{type(self.value).__name__} at {id(self.value):#x}, version {self.version}"
