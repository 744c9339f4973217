"""Profiles and their JSON format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, get_args

from rag_middle.errors import FileFormatError
from rag_middle.plain_data import is_whole

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
        weights_sha256: of all parameters, in the number format they were loaded in.
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
    weights_sha256: str | None = None
    weights_sample: str | None = None
    tokenizer_sha256: str | None = None
    config_sha256: str | None = None
    adapters_sha256: str | None = None

    def __post_init__(self) -> None:
        _require(self, str, "id")
        _require(self, str | None, "model_type")
        _require(self, int | None, "layers", "hidden_size", "heads", "kv_heads")
        _require(self, str | None, "revision", "weights_sha256", "weights_sample")
        _require(self, str | None, "tokenizer_sha256", "config_sha256", "adapters_sha256")

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
        _require(self, str, "method", "note")
        _require(self, Mapping, "options", "software", "data", "search", "scores")
        if not isinstance(self.model, ModelFacts):
            raise FileFormatError(f"'model' should be an object, got {self.model!r}.")
        _require(self, bool | None, "recommended")
        _require(self, int | None, "seed")
        if self.origin not in get_args(Origin):
            raise FileFormatError(
                f"'origin' should be one of {', '.join(get_args(Origin))}, got {self.origin!r}."
            )

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
        # True is equal to 1.
        if not is_whole(content.get("version")) or content["version"] != FORMAT_VERSION:
            raise FileFormatError(
                f"This profile has version {content.get('version')!r} of the format, and this "
                f"package reads version {FORMAT_VERSION}. Use the package version that wrote it, "
                "or calibrate again."
            )
        body = {name: value for name, value in content.items() if name not in ("format", "version")}
        if isinstance(body.get("model"), dict):  # else, __post_init__ refuses it
            body["model"] = _create(ModelFacts, body["model"])
        profile: Profile = _create(cls, body)
        return profile


def _create(kind: type[Any], values: Mapping[str, Any]) -> Any:
    names = [field.name for field in fields(kind)]
    for name in values:
        if name not in names:
            raise FileFormatError(f"A profile has no field {name!r}; it has {', '.join(names)}.")
    try:
        return kind(**values)
    except TypeError as error:  # a field that has no default is missing
        raise FileFormatError(f"The profile is incomplete: {error}.") from error


def _require(owner: object, kind: Any, *names: str) -> None:
    for name in names:
        value = getattr(owner, name)
        # True is an instance of int, and not a number of layers.
        if not isinstance(value, kind) or (isinstance(value, bool) and kind != bool | None):
            expected = getattr(kind, "__name__", str(kind))
            raise FileFormatError(f"{name!r} should be a {expected}, got {value!r}.")
