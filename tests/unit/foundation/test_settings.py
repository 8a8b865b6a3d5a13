"""Tables of settings: accepted values, and one error that lists all mistakes in plain words."""

import tomllib
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import Annotated, Any, Literal

import pytest
from msgspec import Meta, field

from foundation.errors import ConfigError
from foundation.setting_types import ALONE, HIDDEN, Settings, Shape, finite
from foundation.settings import check, describe_settings


def upper(text: str) -> str:
    if text == "bad":
        raise ValueError("is bad")
    return text.upper()


class Below(Settings, frozen=True, kw_only=True):
    depth: Annotated[int, Meta(ge=0, description="how deep")] = 1


class Table(Settings, frozen=True, kw_only=True):
    must: Annotated[str, Meta(description="it must be there")]
    whole: Annotated[int, Meta(ge=1, le=9, description="from one to nine")] = 5
    part: Annotated[float, Meta(gt=0), finite, Meta(description="a share")] = 0.5
    switch: Annotated[bool, Meta(description="on or off")] = False
    choice: Annotated[Literal["a", "b", "c"], Meta(description="a letter")] = "a"
    auto: Annotated[Literal["auto"] | Annotated[int, Meta(ge=1)], Meta(description="how many")] = "auto"
    shape: Annotated[str | None, Meta(description="any")] = None
    code: Annotated[Annotated[str, Shape("[0-9]+")] | None, Meta(description="only digits")] = None
    zone: Annotated[str, Shape("z[0-9]", 'a zone such as "z1"'), Meta(description="where")] = "z1"
    words: Annotated[tuple[Annotated[str, upper], ...], ALONE, Meta(description="some words")] = ()
    numbers: Annotated[tuple[Annotated[int, Meta(ge=0)], ...], Meta(description="some numbers")] = ()
    counts: Annotated[dict[Annotated[str, Shape("[a-z]+", "a name")], int], Meta(description="counts")] = field(
        default_factory=dict
    )
    secrets: Annotated[dict[str, Annotated[str, HIDDEN]], Meta(description="secrets")] = field(default_factory=dict)
    below: Below = Below()

    def conflicts(self, message: AbstractSet[str]) -> Iterator[str]:
        if self.whole == 9 and self.switch:
            yield "whole and switch do not go together"
        if {"zone", "code"} <= message:
            yield "zone and code do not go together"


def read(text: str) -> Table:
    return check(Table, tomllib.loads(f'must = "x"\n{text}'), source="a.toml")


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("whole = 1", "whole", 1),
        ("part = 1", "part", 1.0),
        ("switch = true", "switch", True),
        ('code = "12"', "code", "12"),
        ('words = "one"', "words", ("ONE",)),
        ('words = ["one", "two"]', "words", ("ONE", "TWO")),
        ("counts = { a = 1, b = 2 }", "counts", {"a": 1, "b": 2}),
        ("below = { depth = 3 }", "below", Below(depth=3)),
    ],
)
def test_accepts(text: str, key: str, value: Any) -> None:
    found = getattr(read(text), key)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("whole = 0", "whole = 0: must be a whole number from 1 to 9 (from one to nine)"),
        ("part = 0", "part = 0: must be a number above 0 (a share)"),
        ("part = inf", "part = inf: must be finite"),
        ("switch = 1", "switch = 1: must be true or false (on or off)"),
        ('choice = "d"', 'choice = "d": must be "a", "b" or "c" (a letter)'),
        ("auto = 0", 'auto = 0: must be "auto" or a whole number, 1 or more (how many)'),
        ("shape = 1", "shape = 1: must be text in quotes (any)"),
        ('code = "1x"', 'code = "1x": not allowed; allowed: only digits'),
        (r'code = "1\n"', r'code = "1\n": not allowed; allowed: only digits'),
        ('shape = ["a://b:hush@c"]', 'shape = ["a://b:***@c"]: must be text in quotes (any)'),
        ('words = ["good", "bad"]', 'words[1] = "bad": is bad'),
        ("words = 1", "words = 1: must be text in quotes (some words)"),
        ("numbers = [1, -1]", "numbers[1] = -1: must be a whole number, 0 or more (some numbers)"),
        ('counts = "a"', 'counts = "a": must be a table (counts)'),
        ('counts = { a = "1" }', 'counts.a = "1": must be a whole number (counts)'),
        ("counts = { A = 1 }", "counts.A: must be a name"),
        ("secrets = { a = 31337 }", "secrets.a: must be text in quotes (secrets)"),
        ("secrets = 31337", "secrets: must be a table (secrets)"),
        ("[[below]]\ndepth = 1", "below = [{ depth = 1 }]: must be a table, written as [below]"),
        ("[below]\ndepht = 1", 'below.depht: unknown key; did you mean "depth"?'),
        (
            "[below]\nswitch = 1",
            "below.switch: unknown key; did you mean switch, above the first [table]?",
        ),
        ("whole = 9\nswitch = true", "whole and switch do not go together"),
        ("numbers = '" + "x" * 100 + "'", 'numbers = "' + "x" * 76 + "...: must be a list (some numbers)"),
        ("numbers = '3'", 'numbers = "3": must be a list such as ["3"] (some numbers)'),
    ],
)
def test_rejects(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read(text)
    assert raised.value.message == f"a.toml: {message}"


def test_lists_all_mistakes_in_the_order_of_the_keys() -> None:
    text = "[below]\ndepth = -1\nx = 1\n[counts]\nA = 1\nb = 'b'"
    with pytest.raises(ConfigError) as raised:
        check(Table, tomllib.loads(f"other = 1\nnumbers = [-1, 0, -2]\n{text}"), source="a.toml", given=("numbers",))
    assert [line.partition(" = ")[0].partition(": ") for line in raised.value.message.splitlines()] == [
        ("a.toml", ": ", "must: missing; it must be there"),
        ("command line", ": ", "numbers[0]"),
        ("command line", ": ", "numbers[2]"),
        ("a.toml", ": ", "counts.A: must be a name"),
        ("a.toml", ": ", "counts.b"),
        ("a.toml", ": ", "below.depth"),
        ("a.toml", ": ", "below.x: unknown key (known here: depth)"),
        ("a.toml", ": ", f"other: unknown key (known here: {', '.join(describe_settings(Table))})"),
    ]
