"""What the engine is asked to do: the value of ``rag_middle`` among its options.

On the command line, or in `LLM`, it may name a file or a preset. `resolved` puts the content in
its place before vLLM makes its config: so the file is read once, where the user is, workers on
other machines need none, and vLLM's compile cache, whose key covers the config, tells one content
from another.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rag_middle.errors import MethodConfigError
from rag_middle.methods import Method, method_from_profile, resolve_method
from rag_middle.profiles import Profile

#: The name under which `hf_overrides` and `additional_config` hold the option.
OPTION = "rag_middle"
#: The key in it under which it has the methods that requests choose by name.
DOCUMENTS = "documents"

_EXAMPLES = (
    '{"profile": "lpes.json"}, {"method": "lpes", "options": {"factors": [1.0, 1.2]}}, '
    '{"method": "profile:lpes.json"} or {"documents": {"rotor": {}}}'
)


def resolved(option: object) -> dict[str, Any]:
    """The option with the content of the profile or preset that it names, as plain data.

    Resolving twice changes nothing.

    Raises:
        MethodConfigError: another form, or a method's refusal of its options.
        UnknownNameError: no such method or preset.
        FileFormatError: a profile that cannot be read.
    """
    fields = _checked(option)
    if DOCUMENTS in fields:
        from rag_middle_vllm.documents.methods import document_methods

        document_methods(fields[DOCUMENTS])
        return fields
    profile = fields.get("profile")
    if isinstance(profile, Mapping):
        method_of(fields)
        return fields
    name = fields["method"] if profile is None else f"profile:{profile}"
    method = resolve_method(name, fields.get("options"))
    if len(method.parts) > 1:
        raise MethodConfigError(f"{name!r} is a composition: vLLM is given one method.")
    if method.provenance is None:
        return fields
    whole = method.provenance.profile
    content = Profile(
        method=whole.method, options=whole.options, model=whole.model, origin=whole.origin
    )  # without the trace of the search, which is long
    return {"profile": content.to_dict(), "source": method.provenance.source}


def method_of(option: object) -> Method:
    """The method that a resolved option is about.

    Raises:
        MethodConfigError: it names a file or a preset, or has another form.
        UnknownNameError: no such method.
        FileFormatError: its profile is none.
    """
    fields = _checked(option)
    profile, source = fields.get("profile"), fields.get("source", "the profile")
    if isinstance(profile, Mapping):
        return method_from_profile(Profile.from_dict(profile), source)
    if profile is not None or not fields["method"].isidentifier():
        raise MethodConfigError(
            f"{OPTION}: {profile or fields['method']!r} was not read before the engine started, "
            "and workers read no files. Pass it as hf_overrides (a dictionary) or "
            "additional_config, to LLM, EngineArgs or `vllm serve`; a model's config.json holds a "
            "profile's content, not its path."
        )
    return resolve_method(fields["method"], fields.get("options"))


def option_of(vllm_config: Any, model_config: Any) -> Any | None:
    """What an engine is asked of a model; drafts of speculative decoding stay as they are.

    Raises:
        MethodConfigError: it is asked of two things at once.
    """
    if model_config.runner_type == "draft":
        return None
    additional = vllm_config.additional_config
    of_engine = additional.get(OPTION) if isinstance(additional, dict) else None
    of_model = getattr(model_config.hf_config, OPTION, None)
    if None not in (of_model, of_engine) and of_model != of_engine:
        raise MethodConfigError(
            f"{OPTION} is both in hf_overrides and in additional_config, and they differ: give one."
        )
    return of_engine if of_model is None else of_model


def _checked(option: object) -> dict[str, Any]:
    fields = dict(option) if isinstance(option, Mapping) else {}
    kinds: dict[str, Any] = {"profile": str | Mapping, "method": str, "options": Mapping}
    are_typed = all(isinstance(fields[name], kinds[name]) for name in kinds.keys() & fields.keys())
    names = {*fields} - {"source"}
    if not are_typed or names not in ({DOCUMENTS}, {"profile"}, {"method"}, {"method", "options"}):
        raise MethodConfigError(f"{OPTION} should be as {_EXAMPLES}; got {option!r:.300}.")
    return fields
