"""Tools that a model may call: what they are, how templates write calls, reading them back.

Tools go to the model through its own chat template, which decides how calls are written. `formats`
knows the families' ways of writing; `definitions` checks what callers pass. Nothing here needs a
model or a tokenizer.
"""

from rag_middle.tools.definitions import (
    InvalidToolCall,
    ToolCall,
    check_response_format,
    check_tool_choice,
    check_tools,
    forced_tools,
    parameters_of,
    with_top_resolved,
)
from rag_middle.tools.formats import (
    FORMATS,
    AnswerText,
    ToolFormat,
    ToolMessage,
    format_of,
)
from rag_middle.tools.grammars import answer_grammar, call_grammar

__all__ = [
    "FORMATS",
    "AnswerText",
    "InvalidToolCall",
    "ToolCall",
    "ToolFormat",
    "ToolMessage",
    "answer_grammar",
    "call_grammar",
    "check_response_format",
    "check_tool_choice",
    "check_tools",
    "forced_tools",
    "format_of",
    "parameters_of",
    "with_top_resolved",
]
