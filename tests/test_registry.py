from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from recap.errors import InputError, RecapWarning, UnknownNameError
from recap.registry import Entry, Loader, Registry, load

Install = Callable[..., None]


@dataclass(frozen=True)
class Tool(Entry):
    load: Loader = "builtins:len"


TOOLS = (
    Tool("hammer", "drives nails"),
    Tool("saw:BLADE", "cuts", extra="wood", requires=("no_such_module",)),
    Tool("screwdriver", "turns", requires=("json",)),
)


@pytest.fixture
def tools() -> Registry[Tool]:
    return Registry("tool", TOOLS, group="recap.test_tools")


def test_names_come_in_the_order_of_the_table(tools: Registry[Tool]) -> None:
    assert tools.names() == ("hammer", "saw:BLADE", "screwdriver")
    assert list(tools) == list(TOOLS)


def test_an_entry_with_an_argument_stands_for_all_such_names(tools: Registry[Tool]) -> None:
    assert tools.get("hammer") is TOOLS[0]
    assert tools.get("saw:/a:b") is TOOLS[1]
    assert "saw:fine" in tools
    assert [name in tools for name in ("saw", "saw:", "hammer:", "hammer:x", "drill", "")] == [False] * 6


@pytest.mark.parametrize(
    ("name", "meant"),
    [("hamer", "hammer"), ("saw", "saw:BLADE"), ("sew:fine", "saw:BLADE"), ("ScrewDrivers", "screwdriver")],
)
def test_a_name_with_a_slip_is_recognised(tools: Registry[Tool], name: str, meant: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        tools.get(name)
    assert str(caught.value) == (f"unknown tool {name!r}; did you mean {meant}? known: hammer, saw:BLADE, screwdriver")


def test_a_name_like_no_other_gets_the_list_only(tools: Registry[Tool]) -> None:
    with pytest.raises(UnknownNameError, match=r"^unknown tool 'xyz'; known: hammer, saw:BLADE, screwdriver$"):
        tools.get("xyz")


def test_the_extra_is_named_only_where_a_module_is_missing() -> None:
    assert [tool.missing_extra for tool in TOOLS] == [None, "wood", None]


def test_loaders_are_functions_or_places_of_functions() -> None:
    assert load("builtins:len", "hammer", "abc") == 3
    assert load(round, "hammer", 2.345, ndigits=1) == 2.3
    assert load(lambda *arguments: arguments, "saw:a:b", 1) == ("a:b", 1)


DRILL = """
from test_registry_tools import Tool
DRILL = Tool("drill:SIZE", "makes holes", load=lambda argument: int(argument))
HAMMER = Tool("hammer", "not ours")
NOTHING = 3
"""


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an installed module import this one's classes, whatever name pytest gave it."""
    monkeypatch.setitem(sys.modules, "test_registry_tools", sys.modules[__name__])


@pytest.mark.usefixtures("shared")
def test_an_installed_package_adds_entries(tools: Registry[Tool], install_package: Install) -> None:
    install_package("toolbox", DRILL, {"recap.test_tools": {"drill": "toolbox:DRILL", "hammer": "toolbox:HAMMER"}})
    assert tools.names() == ("hammer", "saw:BLADE", "screwdriver", "drill")
    assert "toolbox" not in sys.modules, "names are known without importing anything"
    assert load(tools.get("drill:7").load, "drill:7") == 7
    assert tools.get("hammer") is TOOLS[0], "what recap has is not replaced"
    assert [tool.name for tool in tools] == ["hammer", "saw:BLADE", "screwdriver", "drill:SIZE"]
    assert list(Registry("tool", TOOLS)) == list(TOOLS), "without a group nobody adds anything"


@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("toolbox:MISSING", "cannot be imported.*MISSING"),
        ("toolbox:NOTHING", "is no Tool of that name"),
        ("toolbox:HAMMER", "is no Tool of that name"),
    ],
)
def test_a_broken_package_is_named(tools: Registry[Tool], install_package: Install, value: str, reason: str) -> None:
    install_package("toolbox", DRILL, {"recap.test_tools": {"drill": value}})
    with pytest.raises(InputError, match=rf"the tool 'drill' of the package toolbox.*{reason}"):
        tools.get("drill")
    with pytest.warns(RecapWarning, match="toolbox"):
        listed = list(tools)
    assert listed == list(TOOLS)
    assert "hammer" in tools
