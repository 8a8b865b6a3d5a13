"""Fits text to the width of a terminal: wraps lines between words, and leaves out columns of tables. Pure."""

import re
from collections.abc import Collection, Sequence

DEFAULT_COLUMNS = 80  # without a terminal
GAP = "  "
_NARROWEST = 20  # columns that text behind a label needs; with fewer, it is indented less
_LABEL = re.compile(r" *\S+(?: \S+)*  +(?=\S)|(?:ok|==|!!) (?=\S)")
# A command in a message: a program, its own first words, and words that are no prose, such as options, ids and paths.
_FIRST = r"(?:cluster|aws|uv|sudo|ssh|apt|dnf|pip)(?: (?:data|sandbox|ec2|iam|s3|apt-get))? \S+"
_ARGUMENT = r"(?:\S*'[^']*'\S*|-- \S+|(?=\S*[^a-z,;.:)\s])\S+)"
_WORDS = re.compile(rf"( *)([(`]*{_FIRST}(?<![,;:)])(?: {_ARGUMENT})*|\S+)")


def find_width(text: str) -> int:
    """Returns how many columns a line of printable text takes on a terminal."""
    from rich.cells import cell_len  # noqa: PLC0415 - slow to import, and most commands draw nothing

    return cell_len(text)


def cut(text: str, columns: int) -> str:
    """Returns as much of a line as fits into so many columns."""
    from rich.cells import chop_cells  # noqa: PLC0415 - as above

    return next(iter(chop_cells(text[:columns], columns)), "")


def wrap(text: str, columns: int) -> str:
    """Wraps lines that are longer than `columns`. Words are never broken, even if they are longer than `columns`.

    Neither are commands, which people copy: a newline in a command would run its first half.

    Further lines are aligned with the text after the last label or column of the first line, such as in
    "price  $1 an hour".
    """
    if all(len(line) <= columns for line in text.split("\n")):
        return text
    return "\n".join(_wrap_line(line, columns) for line in text.split("\n"))


def _wrap_line(line: str, columns: int) -> str:
    if len(line) <= columns:
        return line
    lead = len(line) - len(line.lstrip(" ")) + 2
    indent = _find_indent(line, lead, columns)
    lines, current = [], ""
    for gap, word in _WORDS.findall(line):
        if current.strip() and len(current) + len(gap) + len(word) > columns:
            lines.append(current)
            current = " " * (indent if indent + len(word) <= columns else min(lead, indent)) + word
        else:
            current += gap + word
    return "\n".join([*lines, current])


def _find_indent(line: str, lead: int, columns: int) -> int:
    """Returns the indent of the further lines of a wrapped line. lead: the indent if the line has no label."""
    found, at = lead, 0
    while (label := _LABEL.match(line, at)) and columns - label.end() >= min(_NARROWEST, columns // 2):
        found = at = label.end()
    return found


def render_table(
    rows: Sequence[Sequence[str]],
    *,
    right: Collection[str] = (),
    columns: int | None = None,
    drop: Sequence[str] = (),
    prose: bool = False,
) -> str:
    """Renders rows, the heading first, in aligned columns. Each row is one line.

    right: titles of columns that are aligned to the right. columns: the width to fit into; None: no limit.
    drop: titles of columns to leave out, in this order, while the table is too wide. prose: the last column has
    sentences; if they do not fit, they follow below their row.
    """
    rows = [[cell.replace("\n", "\\n") for cell in row] for row in rows]
    kept = list(range(len(rows[0])))
    widths = [max(len(row[at]) for row in rows) for at in kept]

    def is_too_wide() -> bool:
        return columns is not None and sum(widths[at] for at in kept) + len(GAP) * (len(kept) - 1) > columns

    for title in drop:
        if is_too_wide():
            kept = [at for at in kept if rows[0][at] != title]
    below = kept.pop() if prose and is_too_wide() else None
    lines = []
    for number, row in enumerate(rows):
        cells = ((str.ljust, str.rjust)[rows[0][at] in right](row[at], widths[at]) for at in kept)
        lines.append(GAP.join(cells).rstrip())
        if below is not None and row[below] not in {"", "-"}:
            lines.append(wrap(f"    {row[below].lower() if number == 0 else row[below]}", columns or DEFAULT_COLUMNS))
    return "\n".join(lines)
