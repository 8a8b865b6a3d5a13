"""What a process prints, as lines and progress bars. The bars are recorded output of the programs named beside them."""

import pytest

from node.agent.output import HOLD_S, LONGEST, MOST_BARS, MOST_ROWS, SETTLE_S, Item, OutputLines

UP = "\x1b[A"
OUTER, INNER, BLANK = "outer: 50%|##  | 1/2", "inner: 30%|#   | 3/10", " " * 25


def feed(output: OutputLines, text: str | bytes, now: float = 0.0) -> list[Item]:
    return output.feed(text.encode() if isinstance(text, str) else text, now)


def lines_of(items: list[Item]) -> list[str]:
    return [item.text for item in items if not item.is_bar]


def bar_of(items: list[Item]) -> str | None:
    return next((item.text for item in reversed(items) if item.is_bar), None)


def wait(output: OutputLines, now: float) -> list[Item]:
    """Calls `feed` as often as it is due up to a time."""
    items = []
    while output.due_at is not None and output.due_at <= now:
        items += output.feed(b"", output.due_at)
    return items


RICH = (
    "\x1b[?25l\r\x1b[2Ka 1\nb 1\r\x1b[2K\x1b[1A\x1b[2Ksaid\na 2\nb 2\r\x1b[2K\x1b[1A\x1b[2Ka 3\nb 3\n"
    "\x1b[?25hdone\nmore\n"
)

# What is printed, the lines that are complete at once, and those after the end.
CASES: dict[str, tuple[str | bytes, list[str], list[str]]] = {
    "lines": ("one\n\ntwo\nthree", ["one", "", "two"], ["three"]),
    "Windows": ("one\r\ntwo\r\r\nthree\r", ["one", "two"], ["three"]),
    "only carriage returns": ("10%\r20%\r30%\r", [], ["30%"]),
    "a bar, then lines": (f"\r{OUTER}\ndone\nmore\n", [OUTER, "done", "more"], []),
    "tqdm, nested": (
        f"\r{OUTER}\n\r{INNER}{UP}\n\rinner: 40%{UP}\n\r{BLANK}\r{UP}\router: 100%|####| 2/2\ndone\nmore\n",
        ["outer: 100%|####| 2/2", "done", "more"],
        [],
    ),
    "tqdm, nested, the inner one left": (
        f"\r{OUTER}\n\r{INNER}{UP}\rinner: 100%\n\r{OUTER}\nend\nmore\n",
        ["inner: 100%", OUTER, "end", "more"],
        [],
    ),
    "tqdm at position 2 alone": (f"\n\n\r{INNER}{UP}{UP}" * 3, ["", ""], [INNER]),
    "tqdm.write": (f"\r{OUTER}\r{BLANK}\rhello\n\r{OUTER}", [], ["hello", OUTER]),
    "tqdm, not left": (f"\r{OUTER}\r{BLANK}\r", [], []),
    "Keras": (
        "Epoch 1/2\n\x1b[1m1/10\x1b[0m ━━ loss: 2\x08\x08\x08\x08\r\x1b[1m10/10\x1b[0m ━━ loss: 1\nEpoch 2/2\nEpoch\n",
        ["Epoch 1/2", "\x1b[1m10/10\x1b[0m ━━ loss: 1", "Epoch 2/2", "Epoch"],
        [],
    ),
    "rich": (RICH, ["said", "a 3", "b 3", "done", "more"], []),
    "lines that are drawn again": ("a 1\nb 1\n\x1b[2Aa 2\nb 2\n\x1b[2Aa 3\nb 3\n", ["a 1", "b 1"], ["a 3", "b 3"]),
    "a spinner": ("work |\x08/\x08-\x08\\", [], ["work \\"]),
    "grep's colours": ("\x1b[01;31m\x1b[Kfound\x1b[m\x1b[K it\nend\n", ["\x1b[01;31mfound\x1b[m it", "end"], []),
    "a sequence that is cut off": ("end\x1b[1", [], ["end\x1b[1"]),
    "not UTF-8": (b"caf\xe9 \xff\x00 \xe2\x80\xae\n", ["caf\udce9 \udcff\x00 \u202e"], []),
    "cut in a character": (b"caf\xc3", [], ["caf\udcc3"]),
    "a question": ("Continue? ", [], ["Continue? "]),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("size", [1, 3, 1 << 16])
def test_output_becomes_lines_as_a_terminal_shows_them(name: str, size: int) -> None:
    text, at_once, at_the_end = CASES[name]
    data, output = text if isinstance(text, bytes) else text.encode(), OutputLines()
    items = [item for at in range(0, len(data), size) for item in output.feed(data[at : at + size], 0.0)]
    assert lines_of(items) == at_once
    assert lines_of(output.flush()) == at_the_end
    assert output.due_at is None


def test_very_long_lines_are_cut() -> None:
    output, items = OutputLines(), []
    for _ in range(80):
        items += feed(output, b"x" * 65536)
        assert max(len(row.text) for row in output._rows) <= LONGEST
    items += feed(output, "é" * 300_000 + "\nend\n")
    lines = lines_of(items)
    assert {len(line) for line in lines[:80]} == {LONGEST}
    assert "".join(lines) == "x" * 80 * 65536 + "é" * 300_000 + "end"
    assert len(lines) == 80 + 5 + 1


def test_a_display_of_many_rows_is_bounded() -> None:
    output = OutputLines()
    items = feed(output, "".join(f"\rrow {number}\n" for number in range(100)))
    assert lines_of(items) == [f"row {number}" for number in range(100 - MOST_ROWS + 1)]
    assert len((bar_of(output.feed(b"", SETTLE_S)) or "").split("\n")) == MOST_BARS


def test_a_bar_that_is_redrawn_no_more_is_passed_on_when_it_is_due() -> None:
    output = OutputLines()
    feed(output, "\r1%|", 10.0)
    assert output.due_at == 10.0 + SETTLE_S
    assert bar_of(wait(output, 11.0)) == "1%|"
    feed(output, "\r2%|", 11.0)
    assert bar_of(wait(output, 12.0)) == "2%|"
    assert output.due_at is None
    assert feed(output, "\n", 12.0) == []
    assert wait(output, 12.1 + HOLD_S + SETTLE_S) == [Item("2%|"), Item("", is_bar=True)]
    assert output.due_at is None


def test_an_incomplete_line_is_current() -> None:
    output = OutputLines()
    feed(output, "loading ...", 1.0)
    assert wait(output, 2.0) == [Item("loading ...", is_bar=True)]
    assert feed(output, " done\n", 3.0) == [Item("loading ... done")]
    assert wait(output, 4.0) == [Item("", is_bar=True)]
