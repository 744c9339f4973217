"""The methods: a file or folder each, or together where they share code.

LPES, position interpolation and attention buckets are in `scales`, reorderings and permutation in
`orders`, what reads documents apart in `document_blocks`, `NoMethod` in `compose`. Each class is
exported here because `registered` lists it: no second list names them.
"""

# Sorted, every name would have an import of its own.
# isort: off
from rag_middle.methods.base import (
    METHODS as METHODS,
    Method as Method,
    MethodInfo as MethodInfo,
    Provenance as Provenance,
    Runner as Runner,
    chosen_layers as chosen_layers,
)
from rag_middle.methods.registered import *  # noqa: F403
from rag_middle.methods.requirements import (
    require_interface as require_interface,
    require_known_rotation as require_known_rotation,
    require_rope as require_rope,
    unsupported as unsupported,
)
from rag_middle.methods.resolve import (
    method_from_profile as method_from_profile,
    method_in_words as method_in_words,
    method_name as method_name,
    preset as preset,
    resolve_method as resolve_method,
)
from rag_middle.methods.rules import (
    Rule as Rule,
    no_default as no_default,
    number as number,
    one_of as one_of,
    option as option,
    several as several,
    whole as whole,
)
from rag_middle.methods.scales import layer_rotations as layer_rotations
