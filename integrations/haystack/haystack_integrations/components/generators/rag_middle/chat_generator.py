"""RagMiddleChatGenerator: a local chat model that reads ranked documents under a method."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import aclosing, closing
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

from haystack import Document, component, default_from_dict, default_to_dict
from haystack.dataclasses import (
    ChatMessage,
    ComponentInfo,
    StreamingCallbackT,
    StreamingChunk,
    select_streaming_callback,
)
from haystack.tools import (
    ToolsType,
    deserialize_tools_or_toolset_inplace,
    flatten_tools_or_toolsets,
    serialize_tools_or_toolset,
)
from haystack.tools.utils import warm_up_tools
from haystack.utils import ComponentDevice, Secret, deserialize_callable, serialize_callable
from haystack_integrations.components.generators.rag_middle.documents import prompt_documents
from haystack_integrations.components.generators.rag_middle.messages import (
    prompt_messages,
    reply,
    streaming_chunks,
)

from rag_middle import Method, MethodConfigError, RagMiddleModel, UnsupportedGenerationError
from rag_middle.generation import (
    GenerationStream,
    MethodLike,
    shared_model,
    transformers_options,
)
from rag_middle.integration import (
    LOADING,
    call_options,
    chosen_method,
    in_thread,
    named_model,
    pieces_in_thread,
    refuse_secrets,
    split_loading,
    unknown_option,
    with_token,
)
from rag_middle.methods import method_in_words, resolve_method

#: How documents get into a prompt here.
_MARKING = (
    "Connect the retriever's documents to the documents of this component, or put DocumentMarker "
    "between it and the prompt builder, whose template writes {{ document.content }} as it is: "
    "without a filter or a slice, which break the marks."
)


class _Request(NamedTuple):
    """Of one call: arguments of `RagMiddleModel.generate`."""

    prompt: list[dict[str, Any]]
    options: dict[str, Any]


@component
class RagMiddleChatGenerator:
    """A local Hugging Face decoder as a chat generator, whose documents are read under a method.

    ::

        llm = RagMiddleChatGenerator("Qwen/Qwen2.5-7B-Instruct", method="pine")
        pipeline.add_component("llm", llm)
        pipeline.connect("retriever.documents", "llm.documents")
        pipeline.connect("prompt_builder.prompt", "llm.messages")

    Documents come through the input `documents`, in order, and stand at the beginning of the last
    message of the user; their scores reach methods that use them. A template that writes documents
    itself stays as it is behind a `DocumentMarker`.

    Weights are loaded by `warm_up` or the first call, and shared by all components that name the
    same. The ``meta`` of a reply has ``model``, ``finish_reason`` and ``usage``, and under
    ``rag_middle`` the method, whether it was applied, how many documents there were, their ids,
    those left out, the documents that the answer names (``citations``), seed and timings. Where
    ``logprobs`` are asked for, they are there as OpenAI's.

    Args:
        model: a folder, a name on the Hugging Face hub, or a loaded `RagMiddleModel`, whose
            component cannot be saved; by default the small model that commands use.
        method: a name, a preset, a composition (``"ms_poe+siw"``, a list), a calibrated profile
            (``"profile:PATH"``) or a method object; by default none, or that of a loaded model.
        method_options: its parameters, where it is a name.
        generation_kwargs: options of every call, those of `GenerationOptions` and transformers'
            names for them (``max_new_tokens``, ``temperature``, ``stop``, ``response_format``,
            ...), and ``method`` with its ``method_options``.
        meta_fields: names in `Document.meta` whose values are written before a document's text,
            each on a line of its own.
        tools: that the model may call, through its own chat template.
        streaming_callback: gets the answer as it comes.
        device: where the model goes; by default the first GPU, else the CPU.
        token: for the Hugging Face hub.
        model_kwargs: more arguments of `RagMiddleModel.from_pretrained`: ``dtype``,
            ``device_map``, ``quantization_config``, ``attn_implementation``, ``revision``,
            ``trust_remote_code``, ``tokenizer``, ``context_window``, ``self_check``,
            ``model_options``, ``tokenizer_options``.

    Raises:
        UnknownNameError: no such method.
        MethodConfigError: parameters that the method refuses.
        ModelNotFoundError: the model is a path, and nothing is there.
        UnsupportedGenerationError: options that do not exist or make no sense, or what is to be
            loaded beside a loaded model.
    """

    def __init__(
        self,
        model: str | Path | RagMiddleModel | None = None,
        *,
        method: MethodLike | None = None,
        method_options: dict[str, Any] | None = None,
        generation_kwargs: dict[str, Any] | None = None,
        meta_fields: list[str] | None = None,
        tools: ToolsType | None = None,
        streaming_callback: StreamingCallbackT | None = None,
        device: ComponentDevice | None = None,
        token: Secret | None = Secret.from_env_var(  # noqa: B008  # as every component has it
            ["HF_API_TOKEN", "HF_TOKEN"], strict=False
        ),
        model_kwargs: dict[str, Any] | None = None,
    ) -> None:
        self.model = model if isinstance(model, RagMiddleModel) else named_model(model)
        loaded = model if isinstance(model, RagMiddleModel) else None
        self.model_kwargs, of_answers = split_loading(model_kwargs)
        options = {**of_answers, **(generation_kwargs or {})}
        self.generation_kwargs = transformers_options("generation_kwargs", options)
        self.meta_fields = meta_fields
        self.tools = tools
        self.streaming_callback = streaming_callback
        self.device = device
        self.token = token
        self._model = loaded
        self._check_loading()
        self._method = chosen_method(method, method_options, loaded)
        options = self._options(None, None)  # a misspelt one is refused before the first question
        resolve_method(options["method"], options.get("method_options"))

    def _check_loading(self) -> None:
        for name in self.model_kwargs:
            if name not in LOADING:
                raise unknown_option(name, LOADING)
        names = ("model_options", "tokenizer_options")
        refuse_secrets(**{name: self.model_kwargs.get(name) for name in names})
        if isinstance(self.model, RagMiddleModel) and (self.device or self.model_kwargs):
            raise UnsupportedGenerationError(
                "device and model_kwargs say how to load a model, and this one is loaded already. "
                "Pass them to RagMiddleModel.from_pretrained."
            )

    # -- saving ---------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Names and options; weights are loaded again by name.

        Raises:
            UnsupportedGenerationError: the component was given a loaded model.
            MethodConfigError: no name and options choose its method.
        """
        if isinstance(self.model, RagMiddleModel):
            raise UnsupportedGenerationError(
                "Weights are not saved, and this component was given a loaded model: make it from "
                "a folder or a name, from which it is loaded again."
            )
        method, method_options = _saved_method(self._method)
        callback, generation = self.streaming_callback, dict(self.generation_kwargs)
        if generation.get("method") is not None and not generation.get("method_options"):
            generation["method"], options = _saved_method(resolve_method(generation["method"]))
            generation |= {"method_options": options} if options else {}
        model_kwargs = {
            name: str(value).removeprefix("torch.") if name == "dtype" else value
            for name, value in self.model_kwargs.items()
        }
        return default_to_dict(
            self,
            model=str(self.model),
            method=method,
            method_options=method_options,
            generation_kwargs=generation,
            meta_fields=self.meta_fields,
            tools=serialize_tools_or_toolset(self.tools),
            streaming_callback=None if callback is None else serialize_callable(callback),
            device=self.device,
            token=self.token,
            model_kwargs=model_kwargs,
        )

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> RagMiddleChatGenerator:
        """The component that `to_dict` described; nothing is loaded yet."""
        # A copy: reading tools changes them in place.
        parameters = deepcopy(data.get("init_parameters", {}))
        deserialize_tools_or_toolset_inplace(parameters, key="tools")
        if parameters.get("streaming_callback"):
            parameters["streaming_callback"] = deserialize_callable(
                parameters["streaming_callback"]
            )
        generator: RagMiddleChatGenerator = default_from_dict(
            cls, {**data, "init_parameters": parameters}
        )
        return generator

    # -- weights --------------------------------------------------------------------------------

    def warm_up(self) -> None:
        """Load the weights, unless they are there, and prove that the method takes effect.

        Raises:
            RagMiddleError: as `RagMiddleModel.from_pretrained`.
        """
        if self._model is None:
            self._model = self._loaded()
        warm_up_tools(self.tools)

    def _loaded(self) -> RagMiddleModel:
        assert not isinstance(self.model, RagMiddleModel)
        token = None if self.token is None else self.token.resolve_value() or None
        loading = with_token(self.model_kwargs, token)
        if self.device is not None:
            self.device.update_hf_kwargs(loading, overwrite=False)
        return shared_model(self.model, method=self._method, **loading)

    def close(self) -> None:
        """Let go of weights that were loaded by name.

        Other components keep theirs; those used last stay until `release_models`.
        """
        if not isinstance(self.model, RagMiddleModel):
            self._model = None

    @property
    def rag_middle_model(self) -> RagMiddleModel:
        """The model itself, loaded now if it is not there: to measure with, or to share."""
        self.warm_up()
        assert self._model is not None
        return self._model

    # -- calls ----------------------------------------------------------------------------------

    @component.output_types(replies=list[ChatMessage])
    def run(
        self,
        messages: list[ChatMessage] | str,
        *,
        documents: list[Document] | None = None,
        generation_kwargs: dict[str, Any] | None = None,
        streaming_callback: StreamingCallbackT | None = None,
        tools: ToolsType | None = None,
    ) -> dict[str, list[ChatMessage]]:
        """Answer a conversation.

        Args:
            messages: in order; a string is a message of the user.
            documents: ranked, the best one first; each is one document for the method.
            generation_kwargs: options of this call, which come before those of the component.
            streaming_callback: instead of the component's.
            tools: instead of the component's.

        Returns:
            ``{"replies": [message]}``; no reply where there are no messages.

        Raises:
            UnsupportedGenerationError: options that do not exist, make no sense or cannot be
                served.
            ContextOverflowError: the prompt does not fit.
            PromptError: the prompt cannot be turned into tokens, or documents have no text.
            MarkerError: marked documents do not stand together.
        """
        callback: Any = select_streaming_callback(
            self.streaming_callback, streaming_callback, requires_async=False
        )
        request = self._request(messages, documents, generation_kwargs, tools)
        if request is None:
            return {"replies": []}
        model = self.rag_middle_model
        if callback is None:
            generation = model.generate(request.prompt, **request.options)
        else:
            stream = model.stream(request.prompt, **request.options)
            with closing(self._chunks(stream)) as chunks:
                for chunk in chunks:
                    callback(chunk)
            generation = stream.result
        message = reply(generation, self._model_name, request.prompt, model.token_text)
        return {"replies": [message]}

    @component.output_types(replies=list[ChatMessage])
    async def run_async(
        self,
        messages: list[ChatMessage] | str,
        *,
        documents: list[Document] | None = None,
        generation_kwargs: dict[str, Any] | None = None,
        streaming_callback: StreamingCallbackT | None = None,
        tools: ToolsType | None = None,
    ) -> dict[str, list[ChatMessage]]:
        """As `run`, without blocking the event loop. Cancelling the task ends the generation."""
        callback = select_streaming_callback(
            self.streaming_callback, streaming_callback, requires_async=True
        )
        request = self._request(messages, documents, generation_kwargs, tools)
        if request is None:
            return {"replies": []}
        model = await in_thread(lambda _: self.rag_middle_model)

        def options(cancel: threading.Event) -> dict[str, Any]:
            # A caller's own event may serve other requests too, and is not ours to set.
            return {"cancel": cancel, **request.options}

        if callback is None:
            generation = await in_thread(
                lambda cancel: model.generate(request.prompt, **options(cancel))
            )
        else:
            cancel = threading.Event()
            stream = await in_thread(lambda _: model.stream(request.prompt, **options(cancel)))
            async with aclosing(pieces_in_thread(self._chunks(stream), cancel)) as chunks:
                async for chunk in chunks:
                    waiting = callback(chunk)
                    if inspect.isawaitable(waiting):
                        await waiting
            generation = stream.result
        message = reply(generation, self._model_name, request.prompt, model.token_text)
        return {"replies": [message]}

    @property
    def _model_name(self) -> str:
        if isinstance(self.model, RagMiddleModel):
            network: Any = self.model.model
            return str(network.name_or_path or type(network).__name__)
        return str(self.model)

    def _chunks(self, stream: GenerationStream) -> Generator[StreamingChunk, None, None]:
        return streaming_chunks(stream, self._model_name, ComponentInfo.from_component(self))

    def _request(
        self,
        messages: Sequence[ChatMessage] | str,
        documents: Sequence[Document] | None,
        generation_kwargs: Mapping[str, Any] | None,
        tools: ToolsType | None,
    ) -> _Request | None:
        if isinstance(messages, str):
            messages = [ChatMessage.from_user(messages)]
        if not messages:
            return None
        options = self._options(generation_kwargs, tools)
        own = prompt_documents(documents or (), self.meta_fields or ())
        prompt = prompt_messages(messages, own, with_tools=bool(options.get("tools")))
        return _Request(prompt, options)

    def _options(self, call: Mapping[str, Any] | None, tools: ToolsType | None) -> dict[str, Any]:
        """Arguments of `RagMiddleModel.generate` for a call.

        Raises:
            UnsupportedGenerationError: one that does not exist or makes no sense.
        """
        specs = [tool.tool_spec for tool in flatten_tools_or_toolsets(tools or self.tools)]
        own = self.generation_kwargs
        if specs:
            own = {**own, "tools": [{"type": "function", "function": spec} for spec in specs]}
        options = call_options(own, call or {}, _MARKING)
        if options.get("method") is None:
            options["method"] = self._method
        return options


def _saved_method(method: Method) -> tuple[str, dict[str, Any]]:
    """Name and options of a method as JSON can write them.

    Raises:
        MethodConfigError: they would choose another one.
    """
    words = method_in_words(method)
    if words is None:
        raise MethodConfigError(
            f"No name and options choose {method!r}, so it cannot be saved. Write its options into "
            "a profile, and name that: method='profile:PATH'."
        )
    return words
