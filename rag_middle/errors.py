"""Every exception this package raises on purpose.

::

    RagMiddleError
    ├── PromptError                (ValueError)   a prompt that cannot be turned into tokens
    │   ├── MarkerError                           documents apart, or markers unbalanced or stray
    │   ├── ChatTemplateError                     no chat template, or one that drops the content
    │   └── ContextOverflowError                  more tokens than the model's context window holds
    ├── UnsupportedGenerationError (ValueError)   options of a request or of loading are wrong
    ├── MethodConfigError          (ValueError)   parameters are wrong, or wrong for this model
    │   └── IncompatibleMethodsError              two methods of a composition claim the same thing
    ├── ConfigError                (ValueError)   what to measure, search or index is wrong
    ├── UnknownNameError           (LookupError)  no such method, preset, ... ("did you mean")
    ├── RegistrationError          (ValueError)   a name taken twice, or a target that does not load
    ├── UnsupportedArchitectureError              this model cannot take this method
    ├── PatchIneffectiveError                     the method was installed and changed nothing
    ├── ModelNotFoundError         (OSError)      no such model here, and no network to fetch it
    ├── MissingExtraError          (ImportError)  an optional requirement is not installed
    ├── FileFormatError            (ValueError)   a file is damaged, or is not what it should be
    ├── OutputWriteError           (OSError)      results cannot be written where they were to go
    └── EndpointError                             a model behind an HTTP address cannot be asked

Each message says what was wrong, what was given, and what to do next.
"""

from __future__ import annotations

import copyreg
from typing import Any

__all__ = [
    "ChatTemplateError",
    "ConfigError",
    "ContextOverflowError",
    "EndpointError",
    "FileFormatError",
    "IncompatibleMethodsError",
    "MarkerError",
    "MethodConfigError",
    "MissingExtraError",
    "ModelNotFoundError",
    "OutputWriteError",
    "PatchIneffectiveError",
    "PromptError",
    "RagMiddleError",
    "RegistrationError",
    "UnknownNameError",
    "UnsupportedArchitectureError",
    "UnsupportedGenerationError",
]


class RagMiddleError(Exception):
    """Base of every error raised on purpose by this package."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Worker processes hand errors to each other. By default, one that takes keyword arguments
        # would be made again from its message alone, which fails.
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class PromptError(RagMiddleError, ValueError):
    """A prompt cannot be turned into tokens."""


class MarkerError(PromptError):
    """Documents in a text do not stand together, or trusted markers are unbalanced or stray.

    Attributes:
        position: 0-based character offset of the offending marker.
        excerpt: the text around it.
    """

    def __init__(self, message: str, *, position: int, excerpt: str) -> None:
        super().__init__(f"{message} (at character {position}: {excerpt!r})")
        self.position = position
        self.excerpt = excerpt


class ChatTemplateError(PromptError):
    """The tokenizer has no chat template, or its template loses part of the message."""


class ContextOverflowError(PromptError):
    """The prompt and the tokens to generate exceed the model's context window.

    Attributes:
        prompt_tokens: tokens of the prompt, special tokens included.
        max_new_tokens: tokens asked for.
        context_window: tokens the model can hold.
        example: 0-based index in the batch.
        without_documents: whether `prompt_tokens` counts the prompt without its documents, which
            were to be left out where they do not fit.
    """

    def __init__(
        self,
        *,
        prompt_tokens: int,
        max_new_tokens: int,
        context_window: int,
        example: int = 0,
        without_documents: bool = False,
    ) -> None:
        self.prompt_tokens = prompt_tokens
        self.max_new_tokens = max_new_tokens
        self.context_window = context_window
        self.example = example
        self.without_documents = without_documents
        over = prompt_tokens + max_new_tokens - context_window
        even = ""
        step = (
            "Pass fewer documents, lower max_new_tokens, or choose on_overflow='drop_documents' "
            "(--on-overflow drop_documents)."
        )
        if without_documents:
            even = " even without its documents"
            step = "Shorten the question or the instructions, or lower max_new_tokens."
        super().__init__(
            f"Prompt {example} does not fit{even}: {prompt_tokens} prompt tokens + "
            f"{max_new_tokens} new tokens > context window of {context_window} ({over} too many). "
            f"{step}"
        )


class UnsupportedGenerationError(RagMiddleError, ValueError):
    """Options of a request or of loading are wrong, alone or with the chosen method."""


class MethodConfigError(RagMiddleError, ValueError):
    """A method's parameters are invalid, or do not fit the model they are applied to."""


class IncompatibleMethodsError(MethodConfigError):
    """Two composed methods claim the same part of the attention computation."""


class ConfigError(RagMiddleError, ValueError):
    """What to measure, to search, to index or to serve is wrong, or cannot be had here."""


class UnknownNameError(RagMiddleError, LookupError):
    """A name that is not registered."""


class RegistrationError(RagMiddleError, ValueError):
    """A name is malformed or registered twice, or what it names cannot be loaded."""


class UnsupportedArchitectureError(RagMiddleError):
    """This model cannot take this method.

    Attributes:
        model_type: the ``config.model_type`` of the model.
        reason: what stands in the way.
        alternative: what to use instead.
    """

    def __init__(self, model_type: str, *, reason: str, alternative: str) -> None:
        super().__init__(f"{model_type}: {reason} {alternative}")
        self.model_type = model_type
        self.reason = reason
        self.alternative = alternative


class PatchIneffectiveError(RagMiddleError):
    """A method with non-neutral parameters left the model's logits unchanged."""


class ModelNotFoundError(RagMiddleError, OSError):
    """The model is neither a local directory nor in the local cache, and cannot be fetched."""


class MissingExtraError(RagMiddleError, ImportError):
    """An optional requirement is not installed.

    Attributes:
        what: needs it; begins the message.
        package: what is missing.
        extra: the extra of this package that brings it.
    """

    def __init__(self, what: str, *, package: str, extra: str) -> None:
        super().__init__(
            f"{what} needs the package {package}, which is not installed: "
            f"pip install 'rag-middle[{extra}]'."
        )
        self.what = what
        self.package = package
        self.extra = extra


class FileFormatError(RagMiddleError, ValueError):
    """A file is missing, damaged, of another version, or not what it should be."""


class OutputWriteError(RagMiddleError, OSError):
    """Results cannot be written where they were to go. What was there is as it was."""


class EndpointError(RagMiddleError):
    """A model behind an HTTP address cannot be reached, refuses, or sends no answer.

    Also where something needs the model's weights, which are not here.
    """
