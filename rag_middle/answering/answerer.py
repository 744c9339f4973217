"""Answerer: documents and a model, ready for questions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, Unpack

from rag_middle.answering.results import Answer, AnswerRequest, AnswerStream
from rag_middle.answering.template import DEFAULT_TEMPLATE, PromptTemplate
from rag_middle.documents import ContextPrompt, Document
from rag_middle.errors import ConfigError, PromptError, UnsupportedGenerationError
from rag_middle.generation import (
    MethodLike,
    MissingDocumentsWarning,
    RagMiddleModel,
    TextGenerator,
)
from rag_middle.generation.model import MethodKwargs
from rag_middle.methods import resolve_method
from rag_middle.notices import warn_caller
from rag_middle.options import AskKwargs, checked_options
from rag_middle.retrieval import (
    Built,
    Embedder,
    FaissIndex,
    Retriever,
    SentenceTransformerEmbedder,
    build_index,
    check_exists,
    default_index_folder,
)
from rag_middle.retrieval.faiss_index import check_question, check_top_k
from rag_middle.retrieval.readers import is_index_folder
from rag_middle.small_model import default_model


class QuestionKwargs(MethodKwargs, AskKwargs, total=False):
    """What a question takes beside its text: a method of its own, options of the model, and these.

    Attributes:
        documents: to use instead of retrieving any, in this order.
        history: earlier questions and their answers, oldest first. They stand before the documents;
            what is retrieved is near to the question and the one before it.
        top_k: documents to retrieve, instead of the retriever's own number.
    """

    documents: Iterable[Document | str] | None
    history: Sequence[tuple[str, str]]
    top_k: int | None


class Answerer:
    """Answers questions from documents; it remembers nothing between them.

    Any number of threads may ask; requests take turns on the model.

    Args:
        model: that answers; here (`RagMiddleModel`) or behind an HTTP address
            (`rag_middle.endpoint.EndpointModel`).
        retriever: finds the documents for a question.
        method: a name, a preset, a composition or a method object; by default the model's own.
        method_options: the method's parameters, where `method` is a name.
        prompt_template: of question and documents.

    Raises:
        UnknownNameError: no such method.
        MethodConfigError: parameters that the method refuses.
    """

    def __init__(
        self,
        model: TextGenerator,
        retriever: Retriever,
        *,
        method: MethodLike | None = None,
        method_options: Mapping[str, Any] | None = None,
        prompt_template: PromptTemplate = DEFAULT_TEMPLATE,
    ) -> None:
        self.model = model
        self.retriever = retriever
        self.method = model.method
        if method is not None or method_options:
            self.method = model.checked_method(method or "none", method_options)
        self.prompt_template = prompt_template

    @classmethod
    def over(
        cls,
        documents: str | Path | FaissIndex,
        *,
        model: str | Path | TextGenerator | None = None,
        method: MethodLike | None = None,
        method_options: Mapping[str, Any] | None = None,
        embedder: Embedder | str | Path | None = None,
        top_k: int = 10,
        index_folder: str | Path | None = None,
        rebuild: bool = False,
        prompt_template: PromptTemplate | None = None,
        on_index: Callable[[Built], None] | None = None,
        progress: Callable[[int, int], None] | None = None,
        **loading: Any,
    ) -> Answerer:
        """Load everything, and index the documents unless their index is there and up to date.

        Args:
            documents: a file or folder of documents, a folder of a saved index, or an index.
            model: a directory, a name on the hub, a loaded model, or one behind an HTTP address;
                by default SmolLM2-135M-Instruct (see ``rag_middle.small_model``).
            method: as for the class, like `method_options`; by default none.
            method_options: see there.
            embedder: an embedder, or the name of a sentence-transformers model; by default one
                that needs no network.
            top_k: documents of a prompt; fewer where there are fewer.
            index_folder: where the index is kept; by default in the user's cache, under the path
                of the documents and the name of the embedder.
            rebuild: replace a saved index, also if it is damaged or of another embedder.
            prompt_template: by default the one in the model's folder, if it has one, else
                :data:`DEFAULT_TEMPLATE`.
            on_index: called with the result of indexing.
            progress: called with the texts embedded so far and all of them.
            loading: more arguments for ``RagMiddleModel.from_pretrained``.

        Raises:
            FileFormatError: no documents can be read there; or the saved index is damaged or of
                another embedder, and not `rebuild`.
            ConfigError: there is no such embedder.
            OutputWriteError: the index cannot be saved.
            ModelNotFoundError: the model is neither here nor to be fetched.
            UnsupportedGenerationError: the model cannot be loaded as asked for.
            UnsupportedArchitectureError: the model cannot take the method.
        """
        check_top_k(top_k)
        chosen = resolve_method(method or "none", method_options)  # an error comes first
        if embedder is None or isinstance(embedder, str | Path):
            device = loading.get("device")
            embedder = SentenceTransformerEmbedder(embedder, device=device and str(device))
        is_saved = False
        if not isinstance(documents, FaissIndex):
            check_exists(documents)
            is_saved = is_index_folder(documents)
            if is_saved and rebuild:
                raise ConfigError(
                    f"{str(documents)!r} is a saved index, which cannot be rebuilt without its "
                    "documents: name their folder (--docs), and that of the index beside it "
                    "(--index)."
                )
        folder: str | Path = ""  # what a server calls its model is no folder of this machine
        if model is None or isinstance(model, str | Path):
            folder = default_model() if model is None else model
            model = RagMiddleModel.from_pretrained(folder, method=chosen, **loading)
        elif loading:
            raise UnsupportedGenerationError(
                f"{', '.join(loading)} say how to load a model, and it is loaded already."
            )
        elif isinstance(model, RagMiddleModel):
            folder = model.model.name_or_path or ""
        if isinstance(documents, FaissIndex):
            index = documents
        elif is_saved:
            index = FaissIndex.load(documents, embedder)
        else:
            index_folder = index_folder or default_index_folder(documents, embedder.name)
            built = build_index(
                documents, index_folder, embedder=embedder, rebuild=rebuild, progress=progress
            )
            index = built.index
            if on_index is not None:
                on_index(built)
        _ = index.embedder.dimension  # loads it now, not when the first question is timed
        return cls(
            model,
            Retriever(index=index, top_k=top_k),
            method=None if method is None else chosen,
            prompt_template=prompt_template or PromptTemplate.of_model(folder),
        )

    def ask(self, question: str, **options: Unpack[QuestionKwargs]) -> Answer:
        """Answer a question.

        Args:
            question: to answer.
            options: of `QuestionKwargs`. Unless `on_overflow` says otherwise, the least relevant
                documents are left out where not all fit.

        Raises:
            ConfigError: the question is empty.
            PromptError: `documents` is no list of documents; or none was retrieved or fits, with
                ``on_missing_documents="error"``.
            UnsupportedGenerationError: options that do not exist, make no sense or cannot be
                served.
            ContextOverflowError: the question does not fit, not even without documents.

        Warns:
            MissingDocumentsWarning: no document was retrieved or fits.
        """
        request, arguments = self._request(question, **options)
        return request.answer(self.model.generate(request.prompt, **arguments))

    def stream(self, question: str, **options: Unpack[QuestionKwargs]) -> AnswerStream:
        """Answer a question piece by piece. Arguments and errors are those of `ask`.

        The documents are retrieved, and errors raised, before this returns.
        """
        request, arguments = self._request(question, **options)
        return AnswerStream(request, self.model.stream(request.prompt, **arguments))

    def _request(
        self,
        question: str,
        documents: Iterable[Document | str] | None = None,
        history: Sequence[tuple[str, str]] = (),
        top_k: int | None = None,
        method: MethodLike | None = None,
        method_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> tuple[AnswerRequest, dict[str, Any]]:
        """The question with its documents, and the arguments for the model."""
        arguments = {"on_overflow": "drop_documents", **options}
        checked_options(arguments, allowed=AskKwargs)
        arguments |= {"method": method or self.method, "method_options": method_options}
        check_question(question)
        start = perf_counter()
        if documents is None:
            # "And its mouth?" is near to nothing without what was asked before.
            wanted = "\n".join([question, *(earlier for earlier, _ in history[-1:])])
            documents = self.retriever(wanted, top_k=top_k)
        request = AnswerRequest(
            question=question,
            documents=ContextPrompt(documents=documents).documents,
            template=self.prompt_template,
            seconds=perf_counter() - start,
            history=history,
        )
        action = arguments.get("on_missing_documents", "warn")
        if not request.documents and action != "ignore":
            problem = (
                "No document was found: ask in other words, or search with a lower min_score. "
                "on_missing_documents='ignore' (--on-missing-documents ignore) says that no "
                "document is needed."
            )
            if action == "error":
                raise PromptError(problem)
            warn_caller(MissingDocumentsWarning(problem))
            # Said once: a method that needs documents would say it again.
            arguments["on_missing_documents"] = "ignore"
        return request, arguments
