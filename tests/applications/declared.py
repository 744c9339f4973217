"""Which applications there are, what each needs, and how many documents its model sees.

The tests build them and hold them to this; the documentation shows it. No framework is imported
here: docs/generate.py needs none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

__all__ = ["HAYSTACK", "LANGCHAIN", "LLAMA_INDEX", "Application", "markdown"]


@dataclass(frozen=True)
class Application:
    """An application over six documents, under PINE.

    Attributes:
        name: the pattern.
        change: what it needs besides the model, in Markdown.
        documents: that the model tells apart, in each of its calls.
        note: what else happens, or where documents do not get through.
    """

    name: str
    change: str
    documents: tuple[int, ...]
    note: str = ""


_FORMAT = "`format_docs`"
_PROMPT = "`document_prompt=DocumentPrompt()`"
_IGNORED = '`model.bind(on_missing_documents="ignore")` for the other calls'
_MARKED = "`MarkDocuments()` last in a compression pipeline around the retriever"
_REDUCE = "`DocumentPrompt()` as the attribute `document_prompt` of its combining chain"
_ONE_BY_ONE = "one document per call"

LANGCHAIN = (
    Application("expression: `retriever | format_docs`", _FORMAT, (6,)),
    Application("the same, streamed", _FORMAT, (6,)),
    Application(
        "the same, three questions in a batch", _FORMAT, (6, 6, 6), "prompts share forward passes"
    ),
    Application("the same, asynchronous", _FORMAT, (6,)),
    Application("the same with `RagMiddleLLM`", _FORMAT, (6,)),
    Application("expression that returns its sources", _FORMAT, (6,), "sources stay clean"),
    Application(
        "expression whose answer names its source",
        '`format_docs(documents, source="source")`',
        (6,),
    ),
    Application(
        "`retriever | MarkDocuments().transform_documents`",
        "`MarkDocuments`, where nothing else can be put",
        (6,),
        "the returned documents hold markers",
    ),
    Application("`create_stuff_documents_chain`", _PROMPT, (6,)),
    Application("`create_retrieval_chain`", f"{_PROMPT} of the chain inside", (6,)),
    Application(
        "`create_history_aware_retriever`, second question",
        f"{_PROMPT}; {_IGNORED}",
        (0, 6),
        "rephrasing has no documents",
    ),
    Application(
        "`RetrievalQA`, stuff", '`chain_type_kwargs={"document_prompt": DocumentPrompt()}`', (6,)
    ),
    Application(
        "`RetrievalQA`, refine",
        '`chain_type_kwargs={"document_prompt": DocumentPrompt()}`',
        (1,) * 6,
        _ONE_BY_ONE,
    ),
    Application(
        "`RetrievalQA`, map_reduce",
        f"no `document_prompt` exists: {_MARKED}, and {_REDUCE}",
        (*(1,) * 6, 6),
        "the six answers are the documents of the last call",
    ),
    Application(
        "`RetrievalQA`, map_rerank",
        f"no `document_prompt` exists: {_MARKED}",
        (1,) * 6,
        _ONE_BY_ONE,
    ),
    Application(
        "`ConversationalRetrievalChain`, second question",
        '`combine_docs_chain_kwargs={"document_prompt": DocumentPrompt()}`; '
        'a `condense_question_llm` with `on_missing_documents="ignore"`',
        (0, 6),
        "rephrasing has no documents",
    ),
    Application("summary, stuff", _PROMPT, (6,)),
    Application(
        "summary, map_reduce",
        f"no `document_prompt` exists: `MarkDocuments().transform_documents`, and {_REDUCE}",
        (*(1,) * 6, 6),
        "the six summaries are the documents of the last call",
    ),
    Application("summary, refine", _PROMPT, (1,) * 6, _ONE_BY_ONE),
    Application("`ContextualCompressionRetriever`", _FORMAT, (4,), "keeps the best four"),
    Application(
        "compression by `LLMChainExtractor`",
        f"{_FORMAT}; {_IGNORED}",
        (*(0,) * 6, 6),
        "no route for the extractor's own calls: each reads one document as text",
    ),
    Application("compression pipeline with `LongContextReorder`", "`MarkDocuments()` last", (6,)),
    Application("`ParentDocumentRetriever`", _FORMAT, (6,)),
    Application("`EnsembleRetriever`", _FORMAT, (6,)),
    Application(
        "`MultiQueryRetriever`", f"{_FORMAT}; {_IGNORED}", (0, 6), "queries have no documents"
    ),
    Application("RAG fusion", _FORMAT, (6,)),
    Application(
        "`HypotheticalDocumentEmbedder` (HyDE)",
        f"{_FORMAT}; {_IGNORED}",
        (0, 6),
        "the hypothetical document is none",
    ),
    Application("LangGraph: retrieve, generate", _FORMAT, (6,)),
    Application("LangGraph: corrective RAG", _FORMAT, (6,)),
    Application("`create_agent` with a `dynamic_prompt`", _FORMAT, (6,)),
    Application(
        "`create_retriever_tool` with documents as artifact",
        '`response_format="content_and_artifact"`',
        (6,),
    ),
    Application(
        "`search_result` blocks, as for Anthropic's models", "nothing", (6,), "citations come back"
    ),
    Application('`extra_body={"documents": ...}`, as for vLLM', "nothing", (6,)),
    Application(
        "context built by hand, with ids and questions of its own",
        '`format_docs(documents, source="id")`',
        (6,),
    ),
)

_NODES = "`node_postprocessors=[MarkDocuments()]`"
_NONE = "nothing more; its engines mark their nodes"

LLAMA_INDEX = (
    Application("query engine, `compact`", _NODES, (6,), "source nodes stay clean"),
    Application("query engine, `refine`", _NODES, (1,) * 6, _ONE_BY_ONE),
    Application("query engine, `tree_summarize`", _NODES, (6,)),
    Application("query engine, `simple_summarize`", f"{_NODES}, `DocumentPromptHelper`", (6,)),
    Application("query engine, `accumulate`", _NODES, (1,) * 6, _ONE_BY_ONE),
    Application("query engine, `compact_accumulate`", _NODES, (6,)),
    Application("query engine, streamed", _NODES, (6,)),
    Application("query engine, asynchronous", _NODES, (6,)),
    Application("query engine with `SimilarityPostprocessor`", "`MarkDocuments()` last", (6,)),
    Application("query engine with `LongContextReorder`", "`MarkDocuments()` last", (6,)),
    Application(
        "query engine over sentence windows",
        "`MarkDocuments()` behind `MetadataReplacementPostProcessor`",
        (6,),
    ),
    Application("query engine over an ingestion pipeline", _NODES, (6,)),
    Application("`RetrieverQueryEngine`", _NODES, (6,)),
    Application("`QueryFusionRetriever`", _NODES, (6,)),
    Application(
        "`HyDEQueryTransform`",
        f'{_NODES}; `on_missing_documents="ignore"`',
        (0, 6),
        "the hypothetical document is none",
    ),
    Application(
        "`CitationQueryEngine`, its own synthesizer",
        f"no route: it takes markers off with {_NODES}",
        (0,),
        "the model reads the sources as one text",
    ),
    Application(
        "`CitationQueryEngine`",
        "`response_synthesizer=MarkedSynthesizer(...)` around the one it would have",
        (6,),
        "sources are numbered: `NumberedDocumentsWarning` under order-free methods",
    ),
    Application("`MarkedCitationQueryEngine`", "nothing more", (6,), "the same"),
    Application("`RouterQueryEngine`", _NONE, (6,)),
    Application(
        "`SubQuestionQueryEngine`",
        "`response_synthesizer=MarkedSynthesizer(get_response_synthesizer())`",
        (6, 6, 2),
        "the answers to two sub-questions are documents too",
    ),
    Application("`CustomQueryEngine`", "`format_nodes` in its prompt", (6,)),
    Application("workflow: retrieve, generate", "`MarkDocuments().postprocess_nodes`", (6,)),
    Application(
        "chat engine, `context`, two questions",
        _NODES,
        (6, 6),
        "the last question's documents count",
    ),
    Application("chat engine, `condense_plus_context`", _NODES, (6,)),
    Application("chat engine, `condense_question`", _NONE, (6,)),
    Application("chat engine, `simple`, documents in the message", "`format_nodes`", (6,)),
    Application("chat with `CitableBlock`", "nothing", (6,), "citations come back"),
    Application("`documents=` of a call", "nothing", (6,)),
)

_CONNECTED = "`retriever.documents` to `llm.documents`, none in the template"
_MARKER = "`DocumentMarker` between retriever and template"

HAYSTACK = (
    Application("retriever, prompt, generator", _CONNECTED, (6,)),
    Application("the same, asynchronous and streamed", _CONNECTED, (6,)),
    Application(
        "`AnswerBuilder` with documents",
        _CONNECTED,
        (6,),
        "its documents stay clean, and citations come back",
    ),
    Application("embedding retriever", _CONNECTED, (6,)),
    Application(
        "hybrid retrieval with `DocumentJoiner`", "`joiner.documents` to `llm.documents`", (6,)
    ),
    Application("`MultiQueryTextRetriever`", _CONNECTED, (6,)),
    Application("`LostInTheMiddleRanker`", "`ranker.documents` to `llm.documents`", (6,)),
    Application("`ConditionalRouter` behind the retriever", "its output to `llm.documents`", (6,)),
    Application("a template with a loop over documents", _MARKER, (6,)),
    Application("the same, documents in the system message", _MARKER, (6,)),
    Application("the same, a template of text with `{% message %}`", _MARKER, (6,)),
    Application("`FallbackChatGenerator`", _MARKER, (6,), "it takes messages only"),
    Application("`LLM` with a `user_prompt`", _MARKER, (6,)),
    Application(
        "a conversation, second question",
        "`documents` with each call",
        (6, 6),
        "the last question's documents count",
    ),
)


def markdown(applications: Sequence[Application]) -> str:
    """A table, one row per application."""
    rows = [
        "| application | what to change, besides the model | documents per call | notes |",
        "| --- | --- | --- | --- |",
    ]
    for each in applications:
        cells = (each.name, each.change, _shown(each.documents), each.note)
        rows.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    return "\n".join(rows)


def _shown(documents: Sequence[int]) -> str:
    counted = [(count, len([*calls])) for count, calls in groupby(documents)]
    return ", ".join(f"{calls} × {count}" if calls > 1 else str(count) for count, calls in counted)
