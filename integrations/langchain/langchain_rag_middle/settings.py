"""What `ChatRagMiddle` and `RagMiddleLLM` have in common: weights, method, options, identity."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from langchain_core.language_models.base import LangSmithParams
from langchain_core.outputs import LLMResult
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    field_validator,
    model_validator,
)

from langchain_rag_middle.arguments import (
    FIXED,
    FRAMEWORK,
    OPTIONS,
    constructor_arguments,
    hidden,
    option_field,
    refuse_unknown,
    renamed,
    revealed,
)
from langchain_rag_middle.documents import DocumentPrompt
from langchain_rag_middle.responses import PROVIDER, response_metadata
from rag_middle import UnsupportedGenerationError
from rag_middle.integration import (
    ANSWERS,
    LOADING,
    call_options,
    chosen_method,
    named_model,
    with_token,
    without_secrets,
)

if TYPE_CHECKING:
    from rag_middle import Generation, Method, RagMiddleModel

#: How documents get into a prompt here.
_MARKING = (
    "Pass document_prompt=DocumentPrompt() where the chain takes one, or format_docs, which mark "
    "documents."
)

#: Settings that may hold a token, or proxies with a password.
_OF_LOADING = ("model_options", "tokenizer_options")


class RagMiddleSettings(BaseModel):
    """Weights, a method, and how to generate.

    The options of a request are those of `rag_middle.generation.GenerationOptions`, ``max_tokens``
    being its `max_new_tokens`: ``temperature``, ``top_p``, ``seed``, ``stop``, ``template``, ...
    Stop strings of a call replace those given here. ``pipeline_kwargs`` and ``model_kwargs`` are
    understood as ``HuggingFacePipeline`` has them.

    Attributes:
        model: a directory, a name on the Hugging Face hub, or a loaded model: a `RagMiddleModel`,
            one of transformers with its `tokenizer`, or a text-generation pipeline, whose options
            hold where nothing else is said. By default the small one that commands use.
        method: the method that prompts are read under: a name, a preset, a composition
            (``"ms_poe+siw"``, a list), a calibrated profile (``"profile:PATH"``) or a method
            object.
            By default none, or that of a loaded model.
        method_options: its parameters, where it is a name.
        max_batch_size: prompts per forward pass in ``batch``; memory grows with it.
        document_prompt: how documents read that come as objects, with ``documents=`` of a call.
        n: answers to each prompt, drawn with consecutive seeds; several need a temperature.
        revision: branch, tag or commit on the hub, for model and tokenizer.
        gguf_file: a GGUF file in the directory or on the hub; one here may be `model` itself.
        token: of the hub, for model and tokenizer; shown nowhere, and in no pickle.
        tokenizer: another tokenizer, or where to load it from.
        dtype: ``"auto"`` for the checkpoint's own, or ``"float32"``, ``"bfloat16"``, ...
        device: where the whole model goes; by default a GPU if there is one, else the CPU.
        device_map: how to spread it instead (``"auto"``; needs the accelerate package).
        quantization_config: e.g. a transformers ``BitsAndBytesConfig``.
        attn_implementation: ``"sdpa"``, ``"eager"``, ``"flash_attention_2"``, ...
        trust_remote_code: run code that comes with the model.
        context_window: tokens of prompt and answer together, instead of what the model says.
        self_check: prove of every method new to the model that it takes effect.
        model_options: more arguments for ``AutoModelForCausalLM.from_pretrained``.
        tokenizer_options: more arguments for ``AutoTokenizer.from_pretrained``.
    """

    model_config = ConfigDict(
        arbitrary_types_allowed=True,
        protected_namespaces=(),
        hide_input_in_errors=True,  # a token may be part of it
    )

    model: Any
    method: Any = None
    method_options: dict[str, Any] | None = None

    max_tokens: int = option_field("max_new_tokens")
    temperature: float = option_field("temperature")
    top_p: float = option_field("top_p")
    top_k: int = option_field("top_k")
    typical_p: float = option_field("typical_p")
    repetition_penalty: float = option_field("repetition_penalty")
    no_repeat_ngram_size: int | None = option_field("no_repeat_ngram_size")
    num_beams: int = option_field("num_beams")
    seed: int | None = option_field("seed")
    stop: str | list[str] | None = option_field("stop", default=None)
    eos_token_id: int | list[int] | None = option_field("eos_token_id")
    pad_token_id: int | None = option_field("pad_token_id")
    logprobs: bool = option_field("logprobs")
    top_logprobs: int = option_field("top_logprobs")
    n: int = option_field("n")
    template: str = option_field("template")
    template_options: dict[str, Any] | None = option_field("template_options")
    on_missing_documents: str = option_field("on_missing_documents")
    on_overflow: str = option_field("on_overflow")
    max_batch_size: int = 8
    document_prompt: DocumentPrompt = Field(default_factory=DocumentPrompt)

    revision: str | None = None
    gguf_file: str | None = None
    token: SecretStr | bool | None = None
    tokenizer: Any = Field(default=None, repr=False)
    dtype: Any = None
    device: Any = None
    device_map: Any = None
    quantization_config: Any = None
    attn_implementation: str | None = None
    trust_remote_code: bool = False
    context_window: int | None = None
    self_check: bool = True
    model_options: dict[str, Any] | None = None
    tokenizer_options: dict[str, Any] | None = None

    if TYPE_CHECKING:  # of BaseLanguageModel, which comes with the classes that use this one
        custom_get_token_ids: Callable[[str], list[int]] | None = None

        def _add_version(self, pkg: str, version: str) -> None: ...

    _method: Method = PrivateAttr()
    # Copies share these lists: the model, once it is loaded by its name, and the last report.
    _loaded: list[RagMiddleModel] = PrivateAttr(default_factory=list)
    _reports: list[dict[str, Any]] = PrivateAttr(default_factory=list)

    def __init__(self, **arguments: Any) -> None:
        """Check everything that can be checked without loading the model.

        Raises:
            UnknownNameError: no such method.
            MethodConfigError: parameters that the method refuses.
            ModelNotFoundError: the model is a path, and nothing is there.
            UnsupportedGenerationError: options that do not exist or make no sense, or what is to
                be loaded beside a loaded model.

        Warns:
            IgnoredArgumentWarning: names that only models behind an address need.
        """
        fields = constructor_arguments(arguments)
        refuse_unknown(fields, {*type(self).model_fields})
        super().__init__(**{name: value for name, value in fields.items() if value is not None})
        # Not in a pydantic validator, which would hide the types of these errors.
        self._check_loading()
        self._method = self._chosen_method(self.method, self.method_options)
        self._checked_options({})

    @classmethod
    def from_model_id(
        cls,
        model_id: str,
        task: str = "text-generation",
        device: int | str | None = None,
        batch_size: int | None = None,
        **fields: Any,
    ) -> Self:
        """A model as ``HuggingFacePipeline.from_model_id`` makes one; weights come when needed.

        Args:
            model_id: a directory, or a name on the hub.
            task: ``"text-generation"``; there are no others.
            device: a number of a GPU, -1 for the CPU, or a name; by default a GPU if there is one.
            batch_size: `max_batch_size` here.
            fields: of the constructor: ``model_kwargs``, ``pipeline_kwargs``, `method`, ...

        Raises:
            UnsupportedGenerationError: another task, or options that cannot be served.
        """
        if task != "text-generation":
            raise UnsupportedGenerationError(
                f"task={task!r} is not served, only 'text-generation': methods run in decoders."
            )
        if isinstance(device, int):
            device = "cpu" if device < 0 else f"cuda:{device}"
        of_pipeline = {"device": device, "max_batch_size": batch_size}
        fields |= {name: value for name, value in of_pipeline.items() if value is not None}
        return cls(model=model_id, **fields)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a field: the next call has it. Setting `method` resets `method_options`.

        Raises:
            UnknownNameError: no such method.
            MethodConfigError: parameters that the method refuses.
            UnsupportedGenerationError: the field says what is loaded.
        """
        fields, method = self._changed({name: value})
        for field, setting in fields.items():
            super().__setattr__(field, setting)
        if method is not None:
            self._method = method

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy with other fields, on the same weights; raises as setting a field does."""
        fields, method = self._changed(update or {})
        copy = super().model_copy(update=fields, deep=deep)
        if method is not None:
            copy._method = method
        return copy

    def _changed(self, update: Mapping[str, Any]) -> tuple[dict[str, Any], Method | None]:
        """The fields to set for a change, and the method that they choose if any of them does."""
        self._refuse_fixed(name for name in FIXED if name in update)
        if "method" not in update and "method_options" not in update:
            return dict(update), None
        beside = {"method_options": None} if "method" in update else {"method": self.method}
        fields = {**beside, **update}
        return fields, self._chosen_method(fields["method"], fields["method_options"])

    def _refuse_fixed(self, names: Iterable[str]) -> None:
        if refused := ", ".join(names):
            raise UnsupportedGenerationError(
                f"{refused} cannot change, since weights are loaded once: make another "
                f"{type(self).__name__}. It shares the weights where it can."
            )

    def model_post_init(self, context: Any, /) -> None:
        """Pydantic's own, for private attributes, would end here: LangChain's has to come too."""
        super().model_post_init(context)

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """A copy whose options are its own and whose weights are shared."""
        shared = {id(part): part for part in (self.model, self._loaded)}
        return super().__deepcopy__({**(memo or {}), **shared})

    def __getstate__(self) -> dict[Any, Any]:
        """For pickles: names and options; weights are loaded again, with the tokens of the place.

        Raises:
            UnsupportedGenerationError: it was made with a loaded model.
        """
        if not isinstance(self.model, str | Path):
            raise UnsupportedGenerationError(
                "Weights are not pickled, and this model was given a loaded one: make it from a "
                "folder or a name (model='...'), from which it is loaded again."
            )
        state: dict[Any, Any] = dict(super().__getstate__())
        shown = {name: self._shown_options(name) for name in _OF_LOADING}
        state["__dict__"] = {**state["__dict__"], **shown, "token": None}
        # What was asked is no setting: reports tell ids of documents.
        private = {**state["__pydantic_private__"], "_loaded": [], "_reports": []}
        return {**state, "__pydantic_private__": private}

    def _shown_options(self, name: str) -> dict[str, Any] | None:
        """Options of loading without their secrets; None where none are left."""
        return without_secrets(getattr(self, name)) or None

    @field_validator("model_options", "tokenizer_options")
    @classmethod
    def _hide_secrets(cls, options: dict[str, Any] | None) -> dict[str, Any] | None:
        """Traces, caches and `repr` show every field."""
        shown = without_secrets(options)
        return options and {n: v if n in shown else hidden(v) for n, v in options.items()}

    @model_validator(mode="after")
    def _set_rag_middle_version(self) -> Self:
        self._add_version("langchain-rag-middle", version("langchain-rag-middle"))
        return self

    @property
    def rag_middle_model(self) -> RagMiddleModel:
        """The model itself, loaded now if it is not there: to measure with, or to share.

        Whatever names the same weights shares them, see `rag_middle.generation.shared_model`.
        """
        if not isinstance(self.model, str | Path):
            loaded: RagMiddleModel = self.model
            return loaded
        if not self._loaded:
            from rag_middle.generation import shared_model  # needs PyTorch

            arguments = with_token(self._loading, revealed(self.token))
            options = {name: revealed(arguments.get(name)) for name in _OF_LOADING}
            self._loaded[:] = [shared_model(self.model, **{**arguments, **options})]
        return self._loaded[0]

    @property
    def model_name(self) -> str:
        """The name of the model, as traces and responses show it."""
        if isinstance(self.model, str | Path):
            return str(self.model)
        return str(self.model.model.config.name_or_path or type(self.model.model).__name__)

    @property
    def _loading(self) -> dict[str, Any]:
        """What was said about loading, but for the token."""
        fields = {name: getattr(self, name) for name in LOADING}
        return {name: value for name, value in fields.items() if value is not None}

    @property
    def last_report(self) -> dict[str, Any] | None:
        """What the call that ended last tells under ``"rag_middle"`` of its metadata.

        Method, whether it was applied, number of documents, those left out, seed and timings.
        `None` before the first call, and after an answer from a cache. Where several threads
        call, it is that of any of them.
        """
        return self._reports[-1] if self._reports else None

    def generate(self, *args: Any, **kwargs: Any) -> LLMResult:
        """As the base class; an answer from a cache leaves no report."""
        self._reports.clear()
        return super().generate(*args, **kwargs)  # type: ignore[misc, no-any-return]

    async def agenerate(self, *args: Any, **kwargs: Any) -> LLMResult:
        """As `generate`."""
        self._reports.clear()
        return await super().agenerate(*args, **kwargs)  # type: ignore[misc, no-any-return]

    def _metadata(self, generation: Generation) -> dict[str, Any]:
        """Of an answer; its report is the last one from here on."""
        token_text = self.rag_middle_model.token_text
        metadata = response_metadata(generation, self.model_name, token_text)
        self._reports[:] = [metadata["rag_middle"]]
        return metadata

    # -- counting -----------------------------------------------------------------------------

    def get_token_ids(self, text: str) -> list[int]:
        """Ids of a text inside a prompt, by the model's own tokenizer."""
        if self.custom_get_token_ids is not None:
            return self.custom_get_token_ids(text)
        return list(self.rag_middle_model.token_ids(text))

    # -- identity -----------------------------------------------------------------------------

    @property
    def _identifying_params(self) -> Mapping[str, Any]:
        """What answers depend on: the key of caches, and what traces show."""
        options = {name: getattr(self, name) for name in OPTIONS if name != "stop"}
        return {
            "model_name": self.model_name,
            "method": repr(self._method),
            **options,
            "n": self.n,
            "own_stop": self.stop,  # LangChain writes that of the call over "stop"
            "document_prompt": [
                self.document_prompt.template_format,
                self.document_prompt.template,
            ],
            "weights": self._identity_of_weights(),
        }

    def _identity_of_weights(self) -> dict[str, str]:
        """What says which weights these are; loads nothing.

        By name, all that was said about loading. What changes under the same name and revision, or
        in a loaded model, does not show.
        """
        if isinstance(self.model, str | Path):
            loading = {**self._loading, **{n: self._shown_options(n) for n in _OF_LOADING}}
            tokenizer = loading.get("tokenizer")
            loading["tokenizer"] = getattr(tokenizer, "name_or_path", tokenizer)
            return {name: str(value) for name, value in loading.items() if value}
        network = self.model.model
        return {
            "revision": str(getattr(network.config, "_commit_hash", None)),
            "dtype": str(network.dtype).removeprefix("torch."),
            "context_window": str(self.model.context_window),
        }

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        """What LangSmith shows of a call."""
        inherited: Any = super()  # of BaseChatModel or BaseLLM, which come after this class
        params: LangSmithParams = inherited._get_ls_params(stop=stop, **kwargs)
        params["ls_provider"] = PROVIDER
        params["ls_model_name"] = str(kwargs.get("model") or self.model_name)
        return params

    # -- a call's own settings ------------------------------------------------------------------

    def _options(self, stop: list[str] | None, call: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments of `RagMiddleModel.generate` for a call, `documents` not among them.

        Raises:
            UnsupportedGenerationError: options that do not exist, values that make no sense, or
                another model.
            UnknownNameError: no such method.
            MethodConfigError: parameters that the method refuses, or none that they belong to.
        """
        call = renamed(call)
        names = {*OPTIONS, *FIXED, "n", "method", "method_options", *self._call_names}
        refuse_unknown(call, names | FRAMEWORK)
        if stop is not None:
            call["stop"] = stop
        options = self._checked_options(call)
        method, method_options = call.get("method"), call.get("method_options")
        if method is None and not method_options:
            return {**options, "method": self._method}
        return {**options, "method": chosen_method(method, method_options)}

    def _checked_options(self, call: Mapping[str, Any]) -> dict[str, Any]:
        self._refuse_fixed(name for name in FIXED if call.get(name) is not None)
        options = {}
        for field, name in OPTIONS.items():
            own = getattr(self, field)
            options[name] = own if call.get(field) is None else call[field]
        options["stop"] = options["stop"] or ()
        options = call_options(options, self._more_options(call), _MARKING)
        count = self.n if call.get("n") is None else call["n"]
        ANSWERS.check(count)
        if count > 1 and not options["temperature"]:
            raise UnsupportedGenerationError(
                f"n={count} greedy answers to a prompt would all be the same: set a temperature "
                "above 0, or n=1."
            )
        return {**options, "n": count}

    def _more_options(self, call: Mapping[str, Any]) -> dict[str, Any]:
        """Options that only one of the two classes has."""
        return {}

    @property
    def _call_names(self) -> tuple[str, ...]:
        """Names that only calls take."""
        return ()

    def _chosen_method(self, method: Any, options: Mapping[str, Any] | None) -> Method:
        loaded = None if isinstance(self.model, str | Path) else self.model
        return chosen_method(method, options, loaded)

    def _check_loading(self) -> None:
        if isinstance(self.model, str | Path):
            named_model(self.model)
            return
        defaults = type(self).model_fields
        beside = [
            field
            for field in FIXED
            if field != "model" and getattr(self, field) != defaults[field].default
        ]
        if beside:
            raise UnsupportedGenerationError(
                f"{', '.join(beside)} would say how to load a model, and this one is loaded "
                "already. Pass them to RagMiddleModel.from_pretrained."
            )


def release_models() -> None:
    """Free the weights that no model uses any longer, see `rag_middle.generation`."""
    from rag_middle.generation import release_models  # needs PyTorch, which importing this does not

    release_models()
