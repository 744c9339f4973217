"""Every exception this package raises on purpose.

::

    RagMiddleError
    ├── MarkerError               (ValueError)   documents apart, or markers unbalanced or stray
    ├── PromptError               (ValueError)   a prompt that cannot be turned into tokens
    │   ├── ChatTemplateError                    no chat template, or one that drops the content
    │   └── ContextOverflowError                 more tokens than the model's context window holds
    ├── UnknownNameError          (LookupError)  no such method, preset, ... ("did you mean")
    ├── RegistrationError         (ValueError)   a name taken twice, or a target that does not load
    ├── MethodConfigError         (ValueError)   parameters are wrong, or wrong for this model
    │   ├── IncompatibleMethodsError             two methods of a composition claim the same thing
    │   └── ProfileMismatchError                 a profile was made for a model of another shape
    ├── ProfileFormatError        (ValueError)   a profile cannot be read
    ├── UnsupportedArchitectureError             this model cannot take this method
    ├── UnsupportedGenerationError (ValueError)  generation options a method cannot serve
    ├── KernelsUnavailableError                  kernels that were asked for cannot run here
    ├── PatchIneffectiveError                    the method was installed and changed nothing
    ├── ModelNotFoundError        (OSError)      no such model here, and no network to fetch it
    ├── ModelFormatError          (ValueError)   a file of a model's folder is damaged
    ├── GoldenFormatError         (ValueError)   a directory of golden cases cannot be read
    ├── MissingExtraError         (ImportError)  an optional requirement is not installed
    ├── OutputWriteError          (OSError)      results cannot be written where they were to go
    ├── EvaluationError                          a measurement cannot be made, or not continued
    │   ├── EvaluationConfigError (ValueError)   what to measure is wrong or cannot be had
    │   ├── EvaluationDataError   (ValueError)   a data file cannot be read, or does not suffice
    │   └── EvaluationRecordsError (ValueError)  a file of records is damaged, foreign or in use
    ├── EndpointError                            a model behind an HTTP address cannot be asked
    │   ├── EndpointConfigError   (ValueError)   address, key or options that cannot be served there
    │   ├── EndpointUnreachableError (OSError)   no connection, or no answer in time
    │   ├── EndpointRefusedError                 the server refused a request, or kept failing
    │   ├── EndpointReplyError    (ValueError)   a reply that is damaged, cut, or too large
    │   └── WeightsNeededError    (ValueError)   it needs the model's weights, which are elsewhere
    ├── CalibrationError                         a search cannot be made, or not continued
    │   ├── CalibrationConfigError (ValueError)  what to search for is wrong or cannot be had
    │   └── CalibrationStateError (ValueError)   a search's state is damaged, foreign or in use
    ├── WorkerError                              a worker process ended
    │   └── WorkerConfigError     (ValueError)   there are not the devices for them
    └── RetrievalError                           documents cannot be loaded, indexed or found
        ├── RetrievalConfigError  (ValueError)   options of loading, splitting or indexing are wrong
        ├── DocumentLoadError     (ValueError)   no documents can be read there
        ├── EmbedderError                        no such embedder, or not one to be trusted
        ├── IndexFormatError      (ValueError)   a saved index is missing, damaged or foreign
        │   └── IndexMismatchError               it was made by another embedder
        └── IndexWriteError       (OSError)      an index cannot be saved; what is there stays

Each message says what was wrong, what was given, and what to do next.
"""

from __future__ import annotations

from typing import Any

from rag_middle.wording import Argument, WordedException

__all__ = [
    "CalibrationConfigError",
    "CalibrationError",
    "CalibrationStateError",
    "ChatTemplateError",
    "ContextOverflowError",
    "DocumentLoadError",
    "EmbedderError",
    "EndpointConfigError",
    "EndpointError",
    "EndpointRefusedError",
    "EndpointReplyError",
    "EndpointUnreachableError",
    "EvaluationConfigError",
    "EvaluationDataError",
    "EvaluationError",
    "EvaluationRecordsError",
    "GoldenFormatError",
    "IncompatibleMethodsError",
    "IndexFormatError",
    "IndexMismatchError",
    "IndexWriteError",
    "KernelsUnavailableError",
    "MarkerError",
    "MethodConfigError",
    "MissingExtraError",
    "ModelFormatError",
    "ModelNotFoundError",
    "OutputWriteError",
    "PatchIneffectiveError",
    "ProfileFormatError",
    "ProfileMismatchError",
    "PromptError",
    "RagMiddleError",
    "RegistrationError",
    "RetrievalConfigError",
    "RetrievalError",
    "UnknownNameError",
    "UnsupportedArchitectureError",
    "UnsupportedGenerationError",
    "WeightsNeededError",
    "WorkerConfigError",
    "WorkerError",
]


_DROP_DOCUMENTS = Argument("on_overflow", "drop_documents")


class RagMiddleError(WordedException):
    """Base of every error raised on purpose by this package.

    Attributes:
        parameter: the parameter that the error is about, where it is about one.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        # Processes hand errors to each other. By default, one that takes keyword arguments would
        # be made again from its message alone, which fails.
        return _made_again, (type(self), self.args), self.__dict__


def _made_again(kind: type[RagMiddleError], arguments: tuple[Any, ...]) -> RagMiddleError:
    error = kind.__new__(kind, *arguments)
    error.args = arguments
    return error


class MarkerError(RagMiddleError, ValueError):
    """Documents in a text do not stand together, or trusted markers are unbalanced or stray.

    Attributes:
        position: 0-based character offset of the offending marker.
        excerpt: the text around it.
    """

    def __init__(self, message: str, *, position: int, excerpt: str) -> None:
        super().__init__(f"{message} (at character {position}: {excerpt!r})")
        self.position = position
        self.excerpt = excerpt


class PromptError(RagMiddleError, ValueError):
    """A prompt cannot be turned into tokens."""


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
        even, step = "", "Pass fewer documents, lower "
        other_step: tuple[str | Argument, ...] = (", or choose ", _DROP_DOCUMENTS)
        if without_documents:
            even = " even without its documents"
            step, other_step = "Shorten the question or the instructions, or lower ", ()
        super().__init__(
            f"Prompt {example} does not fit{even}: {prompt_tokens} prompt tokens + "
            f"{max_new_tokens} new tokens > context window of {context_window} ({over} too many). ",
            step,
            Argument("max_new_tokens"),
            *other_step,
            ".",
        )


class UnknownNameError(RagMiddleError, LookupError):
    """A name that is not registered."""


class RegistrationError(RagMiddleError, ValueError):
    """A name is malformed or registered twice, or what it names cannot be loaded."""


class MethodConfigError(RagMiddleError, ValueError):
    """A method's parameters are invalid, or do not fit the model they are applied to."""


class IncompatibleMethodsError(MethodConfigError):
    """Two composed methods claim the same part of the attention computation."""


class ProfileMismatchError(MethodConfigError):
    """A profile's parameters were calibrated for a model of another shape."""


class ProfileFormatError(RagMiddleError, ValueError):
    """A profile is missing, damaged, or of another format version."""


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


class UnsupportedGenerationError(RagMiddleError, ValueError):
    """Generation options that cannot be served, alone or with the chosen method."""


class KernelsUnavailableError(RagMiddleError):
    """Kernels that were asked for by name cannot run: no GPU, another number format, no Triton."""


class PatchIneffectiveError(RagMiddleError):
    """A method with non-neutral parameters left the model's logits unchanged."""


class ModelNotFoundError(RagMiddleError, OSError):
    """The model is neither a local directory nor in the local cache, and cannot be fetched."""


class ModelFormatError(RagMiddleError, ValueError):
    """A file of a model's folder is damaged, or does not belong to the others.

    Attributes:
        file: its name, such as ``config.json``.
        field: of the file, where that is known.
    """

    def __init__(self, source: str, *, file: str, reason: str, field: str | None = None) -> None:
        at = f" (field {field!r})" if field else ""
        super().__init__(
            f"Cannot load {source!r}: {file}{at} is damaged or does not fit its model: {reason} "
            "Fetch the file again, or correct it."
        )
        self.file = file
        self.field = field


class GoldenFormatError(RagMiddleError, ValueError):
    """A directory of golden cases is missing, incomplete or of another format version."""


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


class OutputWriteError(RagMiddleError, OSError):
    """Results cannot be written where they were to go."""


class ServerAddressError(RagMiddleError, OSError):
    """A server cannot listen where it was told to."""


class EvaluationError(RagMiddleError):
    """A measurement cannot be made, or not continued."""


class EvaluationConfigError(EvaluationError, ValueError):
    """What to measure is wrong, or cannot be had together."""


class EvaluationDataError(EvaluationError, ValueError):
    """A data file cannot be read, or holds too little for the task."""


class EvaluationRecordsError(EvaluationError, ValueError):
    """A file of records is damaged, belongs to another measurement, or is being written."""


class EndpointError(RagMiddleError):
    """A model behind an HTTP address cannot be asked."""


class EndpointConfigError(EndpointError, ValueError):
    """An address, a key or options of requests that make no sense, or cannot be served there."""


class EndpointUnreachableError(EndpointError, OSError):
    """The server cannot be connected to, broke the connection, or did not answer in time."""


class EndpointRefusedError(EndpointError):
    """The server refused a request, or answered with an error each time.

    Attributes:
        status: of HTTP; None for an error within a stream.
    """

    def __init__(self, *parts: str | Argument, status: int | None = None) -> None:
        super().__init__(*parts)
        self.status = status


class EndpointReplyError(EndpointError, ValueError):
    """A reply that is not what the interface promises: damaged, cut, or without an answer."""


class WeightsNeededError(EndpointError, ValueError):
    """What was asked for needs the model's weights, and they are behind an HTTP address."""


class CalibrationError(RagMiddleError):
    """A search for settings cannot be made, or not continued."""


class CalibrationConfigError(CalibrationError, ValueError):
    """What to search for is wrong, or cannot be had with this model or these questions."""


class CalibrationStateError(CalibrationError, ValueError):
    """The state of a search is damaged, belongs to another search, or is in use."""


class WorkerError(RagMiddleError):
    """A process that shares work ended; what was done is kept."""


class WorkerConfigError(WorkerError, ValueError):
    """There are not the devices for so many workers."""


class RetrievalError(RagMiddleError):
    """Documents cannot be loaded, indexed or found."""


class RetrievalConfigError(RetrievalError, ValueError):
    """Options of loading, splitting, indexing or searching are wrong."""


class DocumentLoadError(RetrievalError, ValueError):
    """No documents can be read from a file or folder."""


class EmbedderError(RetrievalError):
    """The embedder cannot be found, is not what it should be, or returns unfit vectors."""


class IndexFormatError(RetrievalError, ValueError):
    """A saved index is missing, incomplete, damaged or of another format version."""


class IndexMismatchError(IndexFormatError):
    """A saved index was made by another embedder than the one at hand, or by other files of it."""


class IndexWriteError(RetrievalError, OSError):
    """An index cannot be saved. What was saved there before is as it was."""
