"""Draws the documentation's recording and screens from a real run in the sandbox: `make pictures`.

Types commands in a terminal of 80 columns, and writes what it showed as an animated SVG, with shorter pauses. Then come
the last screen of `cluster watch`, and the curves of `cluster report`.
"""

import fcntl
import html
import os
import pty
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pyte
from pyte.screens import Char

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
CLUSTER = str(Path(sys.executable).parent / "cluster")
BEFORE = ("sandbox start", "data demo demo-data", "data put --create-bucket demo-data/ s3://cluster-demo/digits/")
BEFORE_DOWN, DOWN = ("up", "train --kv-store dist_sync"), "down"
AFTER = "sandbox stop --yes"

COLUMNS, LINES = 80, 24
CHARACTER = (8.4, 19)  # its width and height in pixels, at 14 pixels
MARGIN = 14
FRAME_EVERY_S = 0.3
LONGEST_S = 1.2  # that a frame is shown
LAST_S = 4.0
CURVES, WIDTH, HEIGHT, TITLE = 4, 440, 220, 24  # of the report, in pixels
COLOURS = {
    "default": "#d0d7de", "black": "#6e7681", "red": "#ff7b72", "green": "#7ee787", "brown": "#e3b341",
    "blue": "#79c0ff", "magenta": "#d2a8ff", "cyan": "#76e3ea", "white": "#ffffff",
}  # fmt: skip
BACKGROUND = "#161b22"

Run = tuple[str, str]
"""Adjacent characters of one style: the SVG attributes, and the text."""
Row = tuple[Run, ...]


class Frame(NamedTuple):
    """What the terminal showed from a moment on, in seconds."""

    at: float
    rows: tuple[Row, ...]


def main() -> None:
    """Records the run, and writes recording.svg."""
    folder = Path(tempfile.mkdtemp(prefix="cluster-demo-"))
    try:
        shutil.copy(REPOSITORY / "cluster.toml", folder)
        for words in BEFORE:
            subprocess.run([CLUSTER, *words.split()], cwd=folder, check=True, stdin=subprocess.DEVNULL)
        screen, began = pyte.Screen(COLUMNS, LINES), time.monotonic()
        frames = list(record(screen, BEFORE_DOWN, folder, began))
        (HERE / "watch.svg").write_text(render(shorten([watch(folder)]), title="cluster watch"))
        take_picture(folder)
        frames += record(screen, (DOWN,), folder, began)
    finally:
        subprocess.run([CLUSTER, *AFTER.split()], cwd=folder, check=True)
        shutil.rmtree(folder)
    title = "cluster up, cluster train, cluster down in a terminal"
    (HERE / "recording.svg").write_text(render(shorten(frames), title=title))


def record(screen: pyte.Screen, commands: Sequence[str], folder: Path, began: float) -> Iterator[Frame]:
    """Runs each command in a terminal. Yields what it shows. Raises subprocess.CalledProcessError if one fails."""
    stream = pyte.ByteStream(screen)
    for words in commands:
        stream.feed(f"\x1b[1m$ cluster {words}\x1b[0m\r\n".encode())
        yield Frame(time.monotonic() - began, read_rows(screen))
        for data in run([CLUSTER, *words.split()], folder):
            stream.feed(data)
            yield Frame(time.monotonic() - began, read_rows(screen))
        stream.feed(b"\r\n")


def watch(folder: Path) -> Frame:
    """What `cluster watch` shows of the newest job, which has ended."""
    screen = pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(screen)
    for data in run([CLUSTER, "watch"], folder, leave=lambda: "done" in screen.display[0]):
        if "Leave" not in screen.display[-1] or "done" not in screen.display[0]:
            stream.feed(data)
    return Frame(0.0, read_rows(screen))


def take_picture(folder: Path) -> None:
    """Writes report.svg, the first curves on the page of the newest job, in the colours of the page."""
    subprocess.run([CLUSTER, "report", "-o", "report.html"], cwd=folder, check=True)
    page = (folder / "report.html").read_text()
    style = page.partition("<style>")[2].partition("</style>")[0]
    curves = [f"<svg{one.partition('</svg>')[0]}</svg>" for one in page.split("<svg")[1 : CURVES + 1]]
    placed = "".join(place_curve(one, number % 2 * WIDTH, number // 2 * HEIGHT) for number, one in enumerate(curves))
    size = f'width="{2 * WIDTH}" height="{-(-len(curves) // 2) * HEIGHT}"'
    (HERE / "report.svg").write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}><title>Curves of cluster report</title><style>{style}'
        ".title{font:600 14px system-ui,sans-serif;fill:var(--text)}</style>"
        f'<rect width="100%" height="100%" fill="var(--card)"/>{placed}</svg>\n'
    )


def place_curve(curve: str, x: int, y: int) -> str:
    """An SVG at a place in another one, with its title above. Pure."""
    title = curve.partition("<title>")[2].partition("</title>")[0]
    moved = curve.replace("<svg", f'<svg x="{x}" y="{y + TITLE}" width="{WIDTH}" height="{HEIGHT - TITLE}"', 1)
    return f'<text class="title" x="{x + 12}" y="{y + TITLE}">{title}</text>{moved}'


def run(command: Sequence[str], folder: Path, *, leave: Callable[[], bool] = lambda: False) -> Iterator[bytes]:
    """Runs a command in a terminal. Yields its output, collected for FRAME_EVERY_S. Presses q once `leave` says so."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "", "LINES": ""}
    with subprocess.Popen(command, cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as child:
        os.close(theirs)
        while data := read(ours):
            yield data
            if leave():
                os.write(ours, b"q")
    os.close(ours)
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, command)


def read(terminal: int) -> bytes:
    """The output of the next FRAME_EVERY_S; b"" at its end."""
    data, until = b"", time.monotonic() + FRAME_EVERY_S
    while not data or (select.select([terminal], [], [], max(0.0, until - time.monotonic()))[0]):
        try:
            data += os.read(terminal, 1 << 16)
        except OSError:  # all programs have closed the terminal
            break
    return data


def read_rows(screen: pyte.Screen) -> tuple[Row, ...]:
    """What a screen shows."""
    return tuple(make_runs([screen.buffer[y][x] for x in range(COLUMNS)]) for y in range(LINES))


def make_runs(characters: Sequence[Char]) -> Row:
    """A line's characters by style, without the blanks at its end."""
    runs: list[Run] = []
    for char in characters:
        colour = COLOURS.get(char.fg, f"#{char.fg}")
        style = f' fill="{colour}"' + (' font-weight="bold"' if char.bold else "")
        if runs and runs[-1][0] == style:
            runs[-1] = (style, runs[-1][1] + char.data)
        else:
            runs.append((style, char.data))
    while runs and not runs[-1][1].strip():
        runs.pop()
    if runs:
        runs[-1] = (runs[-1][0], runs[-1][1].rstrip())
    return tuple(runs)


def shorten(frames: Sequence[Frame]) -> list[Frame]:
    """The frames that differ from the one before, each shown for LONGEST_S at most. Pure."""
    distinct = [
        frame
        for before, frame in zip([None, *frames], frames, strict=False)
        if before is None or before.rows != frame.rows
    ]
    at, shortened = 0.0, []
    for frame, following in zip(distinct, [*distinct[1:], None], strict=True):
        shortened.append(Frame(at, frame.rows))
        at += LAST_S if following is None else min(following.at - frame.at, LONGEST_S)
    return [*shortened, Frame(at, distinct[-1].rows)]


def render(frames: Sequence[Frame], *, title: str) -> str:
    """An SVG that shows frames side by side, one after another. The last one ends it. Pure."""
    *shown, end = frames
    width, height = round(COLUMNS * CHARACTER[0]) + 2 * MARGIN, LINES * CHARACTER[1] + 2 * MARGIN
    known: dict[Row, int] = {}
    for frame in shown:
        for row in frame.rows:
            known.setdefault(row, len(known))
    steps = "".join(
        f"{100 * frame.at / end.at:.2f}%{{transform:translateX({-number * width}px)}}"
        for number, frame in enumerate(shown)
    )
    rows = "".join(f'<g id="r{number}">{render_row(row)}</g>' for row, number in known.items() if row)
    strips = "".join(
        f'<g transform="translate({number * width + MARGIN} {MARGIN})">{render_frame(frame, known)}</g>'
        for number, frame in enumerate(shown)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img"><title>{title}</title><style>'
        "text{font:14px ui-monospace,Menlo,Consolas,DejaVu Sans Mono,monospace;white-space:pre}"
        f"@keyframes k{{{steps}100%{{transform:translateX({-(len(shown) - 1) * width}px)}}}}"
        f"#f{{animation:k {end.at:.1f}s steps(1) infinite}}"
        "@media(prefers-reduced-motion:reduce){#f{animation:none;"
        f"transform:translateX({-(len(shown) - 1) * width}px)}}}}</style>"
        f'<defs>{rows}</defs><rect width="100%" height="100%" rx="8" fill="{BACKGROUND}"/>'
        f'<g id="f">{strips}</g></svg>\n'
    )


def render_row(row: Row) -> str:
    """A line of text, whose characters stand below each other in every font. Pure."""
    texts, at = [], 0
    for style, text in row:
        if text.strip():
            length = f'x="{at * CHARACTER[0]:.1f}" textLength="{len(text) * CHARACTER[0]:.1f}"'
            texts.append(f'<text {length} y="14" xml:space="preserve"{style}>{html.escape(text)}</text>')
        at += len(text)
    return "".join(texts)


def render_frame(frame: Frame, known: dict[Row, int]) -> str:
    """All lines of a frame. Pure."""
    return "".join(
        f'<use href="#r{known[row]}" y="{line * CHARACTER[1]}"/>' for line, row in enumerate(frame.rows) if row
    )


if __name__ == "__main__":
    main()
