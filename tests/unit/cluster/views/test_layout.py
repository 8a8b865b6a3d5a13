"""Text that fits a terminal: lines wrapped between words, tables without their less important columns."""

import re

import pytest

from cluster.views.layout import wrap


@pytest.mark.parametrize(
    ("text", "wrapped"),
    [
        ("short enough", "short enough"),
        ("one two three four five six", "one two three four\n  five six"),
        ("    one two three four five", "    one two three\n      four five"),
        ("price  one two three", "price  one two three"),
        ("ok one two three four five", "ok one two three\n   four five"),
        ("a-word-that-is-longer-than-a-line and more", "a-word-that-is-longer-than-a-line\n  and more"),
        ("first\n\none two three four five", "first\n\none two three four\n  five"),
    ],
)
def test_lines_are_wrapped_between_words(text: str, wrapped: str) -> None:
    assert wrap(text, 20) == wrapped


@pytest.mark.parametrize(
    "text",
    [
        "[cluster logs -f 20261127-184133-7ceaa1] follows it, [cluster stop 20261127-184133-7ceaa1] stops it",
        "run [cluster up] again; no node was launched, and [cluster up's] end isn't known",
        "[cluster exec --node n-0 -- sh -c 'df -h; du -xh ~ | sort -h | tail';] or a larger disk",
        "[cluster data put SOURCE... s3://BUCKET/FOLDER/,] or [cluster data get] for the other direction",
        "the command [(`cluster exec -- df -h`):] send less; the cluster's nodes",
    ],
)
def test_no_command_is_broken(text: str) -> None:
    """The parts in brackets stay on one line; elsewhere, lines end between any two words."""
    commands = re.findall(r"\[(.+?)\]", text)
    plain = re.sub(r"[\[\]]", "", text)
    wrapped = wrap(plain, 4).split("\n")
    assert [line.strip() for line in wrapped if " " in line.strip()] == [each for each in commands if " " in each]
