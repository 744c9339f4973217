"""Messages of clients as chat templates know them: roles, calls of tools, and their results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["template_role", "tool_calls_field", "tool_result_fields"]

#: What clients call those who speak. Most templates refuse messages of a tool or a function.
_ROLES = {
    "ai": "assistant",
    "chatbot": "assistant",
    "developer": "system",
    "function": "user",
    "human": "user",
    "model": "assistant",
    "tool": "user",
}


def template_role(role: str, *, with_tools: bool = False) -> str:
    """The role of a chat template that a client's role stands for.

    Args:
        role: the client's.
        with_tools: the template is shown tools, so it writes what they returned as such; else the
            user quotes it.
    """
    return role if with_tools and role == "tool" else _ROLES.get(role, role)


def tool_calls_field(
    calls: Iterable[tuple[str | None, str, Mapping[str, Any] | str]],
) -> dict[str, Any]:
    """The field ``tool_calls`` of a message in which the model called tools; empty without calls.

    Args:
        calls: id, name of the tool and arguments of each.
    """
    entries = [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        for call_id, name, arguments in calls
    ]
    return {"tool_calls": entries} if entries else {}


def tool_result_fields(call_id: str | None, name: str | None) -> dict[str, Any]:
    """What a message with the result of a call has beside its content: its role, and what is known.

    Args:
        call_id: of the call.
        name: of the tool.
    """
    known = {"tool_call_id": call_id or None, "name": name or None}
    return {"role": "tool", **{key: value for key, value in known.items() if value is not None}}
