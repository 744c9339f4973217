"""Which methods that look at documents an engine serves, by the name that requests use.

The option's value is an object, ``{"documents": {NAME: {PARAMETER: VALUE}}}``: whoever starts the
engine sets the parameters, and a request chooses a name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from rag_middle.errors import MethodConfigError
from rag_middle.layout import PromptLayout
from rag_middle.methods import (
    Method,
    NoInterDocumentAttention,
    ParallelContextWindows,
    RoToR,
    resolve_method,
)
from rag_middle.methods.document_blocks.kernels import Placement, token_positions

if TYPE_CHECKING:
    from rag_middle.methods.base import Runner
    from rag_middle.tokens import TokenizedPrompt


@dataclass(frozen=True, slots=True)
class ServedMethod:
    """A method, as far as an engine has to know of it.

    Attributes:
        method: with its parameters.
        placement: where documents stand.
        in_circle: whether documents attend to each other (RoToR), or do not.
    """

    method: Method
    placement: Placement
    in_circle: bool = False

    def arranged(self, prompt: TokenizedPrompt) -> TokenizedPrompt:
        """The prompt with its documents in the order in which the model reads them."""
        # None of the methods served here runs the model to find the order.
        return prompt.select(self.method.arrange(prompt, cast("Runner", None)))

    def identity(self) -> tuple[str, dict[str, object]]:
        """What tells its cached keys and values from those of other methods, as plain data."""
        return self.method.name, asdict(self.method)  # type: ignore[call-overload]


@dataclass(frozen=True)
class DocumentSpans:
    """Where the documents of one request lie, and where its method puts its tokens.

    Attributes:
        method: that the request is read by.
        layout: of the prompt up to the end of its last document.
    """

    method: ServedMethod
    layout: PromptLayout

    @classmethod
    def of_bounds(cls, method: ServedMethod, bounds: tuple[int, ...]) -> DocumentSpans:
        """From the indices where each document begins and where the last one ends."""
        documents = tuple(pairwise(bounds))
        return cls(method, PromptLayout(bounds[-1], documents))

    @cached_property
    def positions(self) -> Tensor:
        """Of the tokens up to the end of the last document, `[P + T]`."""
        return token_positions(self.layout, self.method.placement, torch.arange(self.layout.length))

    @cached_property
    def later_shift(self) -> int:
        """What is added to the positions of the tokens after the documents."""
        end = self.layout.length
        return int(token_positions(self.layout, self.method.placement, torch.tensor(end))) - end


def document_methods(option: object) -> dict[str, ServedMethod]:
    """The methods that an option enables, by name.

    Args:
        option: a mapping from names to parameters, the value of ``documents``.

    Raises:
        MethodConfigError: another form, parameters that are refused, or a method that is not served
            here.
        UnknownNameError: no such method.
    """
    if not isinstance(option, Mapping) or not option:
        raise MethodConfigError(
            "rag_middle: 'documents' is an object of methods and their parameters, such as "
            f'{{"rotor": {{"order": "lexical"}}, "no_inter_document_attention": {{}}}}; got '
            f"{option!r}."
        )
    methods = {}
    for name, parameters in option.items():
        if not isinstance(name, str) or not isinstance(parameters, Mapping):
            raise MethodConfigError(
                f"rag_middle: the parameters of {name!r} are an object, {{}} for none; got "
                f"{parameters!r}."
            )
        methods[name] = document_method(resolve_method(name, parameters))
    return methods


def document_method(method: Method) -> ServedMethod:
    """What an engine has to know of a method.

    Raises:
        MethodConfigError: the method, or one of its parameters, is not served request by request.
    """
    if isinstance(method, NoInterDocumentAttention):
        return ServedMethod(method, "last" if method.equal_positions else "kept")
    if isinstance(method, ParallelContextWindows):
        if method.right_indentation:
            raise MethodConfigError(
                "parallel_context_windows: vLLM does not serve right_indentation, which rotates "
                "keys that are cached already. Leave it out, or use RagMiddleModel."
            )
        return ServedMethod(method, "from_start")
    if isinstance(method, RoToR):
        if method.routing is not None:
            raise MethodConfigError(
                "rotor: vLLM does not serve routing, which reads each prompt twice. Leave it out, "
                "or use RagMiddleModel."
            )
        if method.order == "score":
            raise MethodConfigError(
                "rotor: requests to vLLM carry no scores of documents, so order 'score' is not "
                "served. Take 'lexical', 'frequency' or 'given'."
            )
        return ServedMethod(method, "kept", in_circle=True)
    raise MethodConfigError(
        f"vLLM does not serve {method.name!r} request by request: it serves "
        "no_inter_document_attention, parallel_context_windows and rotor. Run it with "
        "RagMiddleModel; methods that are nothing but rotary tables belong to the whole engine "
        "('method' or 'profile')."
    )
