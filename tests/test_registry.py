"""A registry finds things by name, helps with typing errors, and outlives broken plug-ins."""

import sys
from pathlib import Path

import pytest

from rag_middle.errors import RegistrationError, UnknownNameError
from rag_middle.registry import Registry

GROUP = "rag_middle_test.methods"


@pytest.fixture
def methods() -> Registry[type]:
    registry: Registry[type] = Registry("method", entry_point_group=GROUP)
    registry.register("none", object)
    registry.register("ms_poe", "fractions:Fraction")
    return registry


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Put a distribution with entry points (name -> value) on ``sys.path``."""

    def install(distribution: str, points: dict[str, str]) -> None:
        folder = tmp_path / distribution
        metadata = folder / f"{distribution}-1.2.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.2\n"
        )
        lines = [f"{name} = {value}" for name, value in points.items()]
        (metadata / "entry_points.txt").write_text("\n".join([f"[{GROUP}]", *lines, ""]))
        monkeypatch.syspath_prepend(str(folder))

    return install


def test_a_lazy_target_is_imported_when_asked_for_and_not_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lazy_target_of_test.py").write_text("class Thing: ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    registry: Registry[type] = Registry("thing")
    registry.register("thing", "lazy_target_of_test:Thing")

    assert registry.names() == ("thing",)
    assert "lazy_target_of_test" not in sys.modules
    assert registry.get("thing").__name__ == "Thing"
    assert registry.get("thing") is registry.get("thing")


@pytest.mark.parametrize("typed", ["mspoe", "ms-poe", "MS_POE", "ms_peo"])
def test_an_unknown_name_is_answered_with_the_closest_one(
    methods: Registry[type], typed: str
) -> None:
    with pytest.raises(UnknownNameError) as raised:
        methods.get(typed)
    assert str(raised.value) == (
        f"Unknown method '{typed}'. Did you mean 'ms_poe'? Known: none, ms_poe."
    )


@pytest.mark.parametrize(
    ("name", "target", "message"),
    [
        ("ms_poe", dict, "a method 'ms_poe' already"),
        ("Ms-PoE", dict, "lower-case"),
        ("", dict, "lower-case"),
    ],
)
def test_bad_registrations_are_refused(
    methods: Registry[type], name: str, target: type | str, message: str
) -> None:
    with pytest.raises(RegistrationError, match=message):
        methods.register(name, target)
    assert methods.names() == ("none", "ms_poe")


def test_a_registered_target_that_does_not_load_is_an_error(methods: Registry[type]) -> None:
    methods.register("gone", "rag_middle_test_no_such_module:Thing")
    with pytest.raises(RegistrationError, match=r"'gone' .*No module named"):
        methods.get("gone")
    with pytest.raises(RegistrationError, match="'gone'"):
        dict(methods.items())


def test_other_packages_bring_names_of_their_own(methods: Registry[type], install) -> None:
    install("zebra", {"zebra_method": "decimal:Decimal", "apple_method": "pathlib:PurePath"})
    assert methods.names() == ("none", "ms_poe", "apple_method", "zebra_method")
    assert methods.get("zebra_method").__name__ == "Decimal"
    assert dict(methods.items()).keys() == {"none", "ms_poe", "apple_method", "zebra_method"}


def test_a_broken_package_costs_its_own_names_only(methods: Registry[type], install) -> None:
    install("broken", {"broken_method": "rag_middle_test_no_such_module:X"})
    install("sound", {"sound_method": "decimal:Decimal"})

    assert methods.get("none") is object
    assert methods.get("sound_method").__name__ == "Decimal"
    with pytest.raises(RegistrationError, match=r"broken 1\.2.*Update or remove that package"):
        methods.get("broken_method")
    with pytest.warns(RuntimeWarning, match=r"Left out: .*'broken_method' .*of broken 1\.2"):
        assert list(dict(methods.items())) == ["none", "ms_poe", "sound_method"]


def test_other_packages_cannot_replace_a_name(methods: Registry[type], install) -> None:
    install("greedy", {"none": "decimal:Decimal"})
    with pytest.warns(RuntimeWarning, match=r"'none' \(decimal:Decimal of greedy 1.2\): the name"):
        assert methods.names() == ("none", "ms_poe")
    assert methods.get("none") is object


def test_a_name_registered_later_wins_over_an_entry_point(methods: Registry[type], install) -> None:
    install("early", {"pine": "decimal:Decimal"})
    assert methods.get("pine").__name__ == "Decimal"
    methods.register("pine", int)
    assert methods.get("pine") is int
    assert methods.names() == ("none", "ms_poe", "pine")
