"""Profiles and their JSON format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args, get_origin, get_type_hints

from rag_middle.errors import FileFormatError

FORMAT = "rag-middle profile"
FORMAT_VERSION = 1

#: ``measured``: the result of a search of this package; ``published``: stated by a paper.
Origin = Literal["measured", "published"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """The model that was measured. ``None`` is unknown, and not compared.

    Attributes:
        id: name on the hub, or of the folder.
        revision: commit on the hub.
        model_type: the config's.
        layers: decoder layers.
        hidden_size: size of the residual stream.
        heads: query heads of a layer.
        kv_heads: key/value heads of a layer.
        weights_sample: digest of some values of every parameter, rounded to bfloat16, which is
            the same in every number format and quick to compare.
        tokenizer_sha256: of vocabulary, merges, added tokens and chat template, with the tokens it
            names.
        config_sha256: of the config, as far as it decides what is computed.
        adapters_sha256: of which adapters are active, merged and scaled; None without any.
    """

    id: str
    model_type: str | None = None
    layers: int | None = None
    hidden_size: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    revision: str | None = None
    weights_sample: str | None = None
    tokenizer_sha256: str | None = None
    config_sha256: str | None = None
    adapters_sha256: str | None = None

    def __post_init__(self) -> None:
        _check_types(self)

    def shape_differences(self, other: ModelFacts) -> list[str]:
        """Differences in architecture, in words."""
        return self._differences(
            other,
            {
                "model_type": "type {!r}, here {!r}",
                "layers": "decoder layers {!r}, here {!r}",
                "hidden_size": "hidden size {!r}, here {!r}",
                "heads": "query heads {!r}, here {!r}",
                "kv_heads": "key/value heads {!r}, here {!r}",
            },
        )

    def version_differences(self, other: ModelFacts) -> list[str]:
        """Differences in version (revision, weights, tokenizer, config, adapters), in words."""
        return self._differences(
            other,
            {
                "revision": "revision {}, here {}",
                "weights_sample": "other weights",
                "tokenizer_sha256": "other tokenizer or chat template",
                "config_sha256": "other config",
                "adapters_sha256": "other adapters active",
            },
        )

    def _differences(self, other: ModelFacts, descriptions: Mapping[str, str]) -> list[str]:
        values = {name: (getattr(self, name), getattr(other, name)) for name in descriptions}
        return [
            descriptions[name].format(mine, theirs)
            for name, (mine, theirs) in values.items()
            if mine != theirs and None not in (mine, theirs)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A method with its parameters, and where they come from.

    Attributes:
        method: registered name, or several with ``+`` between them.
        options: the method's parameters, in JSON's types; of several methods, by name.
        model: what they were found for.
        origin: see `Origin`.
        note: a sentence for people, such as "from the paper, not measured by us".
        recommended: whether held-out accuracy improves; None where it was not measured.
        seed: of the search.
        software: versions by package.
        data: what the search and the held-out check used, with digests.
        search: settings and trace.
        scores: before and after, of the search and by position of the held-out check.
    """

    method: str
    options: Mapping[str, Any]
    model: ModelFacts
    origin: Origin = "measured"
    note: str = ""
    recommended: bool | None = None
    seed: int | None = None
    software: Mapping[str, str] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    search: Mapping[str, Any] = field(default_factory=dict)
    scores: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_types(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, with format and version."""
        return {"format": FORMAT, "version": FORMAT_VERSION, **asdict(self)}

    @classmethod
    def from_dict(cls, content: object) -> Profile:
        """The profile of plain data.

        Raises:
            FileFormatError: not a profile, of another version, or incomplete.
        """
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise FileFormatError(
                f"This is not a profile: its 'format' is not {FORMAT!r}. Write one with "
                "`rag-middle calibrate`."
            )
        if content.get("version") != FORMAT_VERSION:
            raise FileFormatError(
                f"This profile has version {content.get('version')!r} of the format, and this "
                f"package reads version {FORMAT_VERSION}. Use the package version that wrote it, "
                "or calibrate again."
            )
        body = {name: value for name, value in content.items() if name not in ("format", "version")}
        try:
            if isinstance(body.get("model"), dict):  # else, the check of types refuses it
                body["model"] = ModelFacts(**body["model"])
            return cls(**body)
        except TypeError as error:  # a field is missing, or there is none of that name
            raise FileFormatError(
                f"The profile is incomplete or has unknown fields: {error}."
            ) from error


def _check_types(owner: object) -> None:
    for name, kind in get_type_hints(type(owner)).items():
        value, origin = getattr(owner, name), get_origin(kind)
        if origin is Literal:
            expected, is_such = f"one of {', '.join(get_args(kind))}", value in get_args(kind)
        else:
            kind = Mapping if origin is Mapping else kind
            expected, is_such = f"a {getattr(kind, '__name__', kind)}", isinstance(value, kind)
        if not is_such:
            raise FileFormatError(f"{name!r} should be {expected}, got {value!r:.100}.")
