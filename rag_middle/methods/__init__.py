"""The methods, one file or folder per paper.

The class of each method is exported here because `registered` lists it: no second list names them.
"""

from rag_middle.methods.base import (
    METHODS as METHODS,
)
from rag_middle.methods.base import (
    Method as Method,
)
from rag_middle.methods.base import (
    MethodInfo as MethodInfo,
)
from rag_middle.methods.base import (
    Runner as Runner,
)
from rag_middle.methods.base import (
    as_indices as as_indices,
)
from rag_middle.methods.base import (
    as_several as as_several,
)
from rag_middle.methods.base import (
    chosen_layers as chosen_layers,
)
from rag_middle.methods.base import (
    no_default as no_default,
)
from rag_middle.methods.base import (
    require_count as require_count,
)
from rag_middle.methods.base import (
    require_finite as require_finite,
)
from rag_middle.methods.provenance import Provenance as Provenance
from rag_middle.methods.registered import *  # noqa: F403
from rag_middle.methods.requirements import (
    require_interface as require_interface,
)
from rag_middle.methods.requirements import (
    require_known_rotation as require_known_rotation,
)
from rag_middle.methods.requirements import (
    require_rope as require_rope,
)
from rag_middle.methods.requirements import (
    unsupported as unsupported,
)
from rag_middle.methods.resolve import (
    method_from_profile as method_from_profile,
)
from rag_middle.methods.resolve import (
    method_in_words as method_in_words,
)
from rag_middle.methods.resolve import (
    method_name as method_name,
)
from rag_middle.methods.resolve import (
    preset as preset,
)
from rag_middle.methods.resolve import (
    resolve_method as resolve_method,
)
from rag_middle.methods.rope_parameters import (
    exported_rope_parameters as exported_rope_parameters,
)
from rag_middle.methods.rotations import (
    layer_rotations as layer_rotations,
)
