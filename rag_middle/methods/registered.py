"""The methods by name. The only list of them: everything else is made from it."""

from __future__ import annotations

from rag_middle.errors import RegistrationError
from rag_middle.methods.base import Method
from rag_middle.registry import Registry

__all__ = ["METHODS"]


def _check(target: object) -> None:
    if not (isinstance(target, type) and issubclass(target, Method)):
        raise RegistrationError(f"{target!r} is not a subclass of rag_middle.methods.Method.")


METHODS: Registry[type[Method]] = Registry(
    "method", entry_point_group="rag_middle.methods", check=_check
)
METHODS.register("none", "rag_middle.methods.none:NoMethod")
METHODS.register("pine", "rag_middle.methods.pine:PINE")
METHODS.register("ms_poe", "rag_middle.methods.ms_poe:MsPoE")
METHODS.register(
    "positional_hidden_states",
    "rag_middle.methods.positional_hidden_states:PositionalHiddenStates",
)
METHODS.register("lpes", "rag_middle.methods.lpes:LPES")
METHODS.register("siw", "rag_middle.methods.siw:SIW")
METHODS.register(
    "position_interpolation", "rag_middle.methods.position_interpolation:PositionInterpolation"
)
METHODS.register("compose", "rag_middle.methods.compose:Compose")
