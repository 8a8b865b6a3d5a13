"""Text that fits a terminal: lines wrapped between words, tables without their less important columns."""

import re

import pytest

from cluster.views.layout import render_table, wrap


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
        "end what is not yours: [aws ec2 terminate-instances --instance-ids i-123]",
        "cut it again [(cluster data split s3://b/x/ DST --shards 4)] or read it as it is",
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


def test_further_lines_are_aligned_with_what_follows_a_label() -> None:
    text = "state  degraded: node 1 is stopped; 1 of the 2 nodes that cluster.toml asks for"
    assert wrap(text, 50).split("\n")[1] == "       nodes that cluster.toml asks for"
    row = "node-0  s3     s3://b/d/  FAILED   it may not be read with these credentials"
    assert wrap(row, 60).split("\n")[1] == " " * 35 + "these credentials"


ROWS = [("NODE", "ZONE", "STATE"), ("node-0", "us-east-1a", "running"), ("node-1", "us-east-1a", "a\nb")]


@pytest.mark.parametrize(
    ("columns", "first"),
    [(None, "NODE    ZONE        STATE"), (27, "NODE    ZONE        STATE"), (26, "NODE    STATE"), (3, "NODE")],
)
def test_columns_are_left_out_until_a_table_fits(columns: int | None, first: str) -> None:
    lines = render_table(ROWS, columns=columns, drop=("ZONE", "STATE")).split("\n")
    assert lines[0] == first
    assert len(lines) == len(ROWS)


def test_numbers_are_aligned_to_the_right() -> None:
    rows = [("name", "MB/s"), ("a", "1"), ("bcdef", "100")]
    assert render_table(rows, right=["MB/s"]) == "name   MB/s\na         1\nbcdef   100"
