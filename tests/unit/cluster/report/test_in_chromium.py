"""The page in a browser: it draws, says nothing on the console, and asks nothing of the network."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from PIL import Image

from cluster.report import JobData, render_report
from job_records import make_record
from report_logs import START, begin, read, speed

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr")
EVIL = '<img src="https://example.com/x.png" onerror="alert(1)"><script>console.log("ran")</script>'

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium"),
]


def make_page() -> str:
    history = read(*begin(1), *(speed(at, 0, 100 + at, f"  {EVIL}=1", epoch=at) for at in range(20)))
    record = make_record(1, error=EVIL, warnings=[EVIL])
    return render_report([JobData(record=record, history=history, now=START + 1000)])


def load(html: str, folder: Path, *options: str) -> list[str]:
    """Returns what the page says on the console; its policy reports each request there."""
    (folder / "page.html").write_text(html)
    command = [str(CHROMIUM), *OPTIONS, f"--user-data-dir={folder / 'profile'}", *options]
    done = subprocess.run([*command, f"file://{folder}/page.html"], capture_output=True, text=True, check=True)
    return re.findall(r"CONSOLE.*", done.stderr)


def count_colours(path: Path) -> int:
    with Image.open(path) as picture:
        return len(picture.convert("RGB").getcolors(1 << 24) or [])


def test_the_page_draws_and_asks_for_nothing(tmp_path: Path) -> None:
    shot = tmp_path / "shot.png"
    assert load(make_page(), tmp_path, f"--screenshot={shot}", "--window-size=1280,2000") == []
    assert count_colours(shot) > 100
    messages = load(make_page().replace("<main>", f"<main>{EVIL}"), tmp_path, f"--screenshot={shot}")
    assert any("example.com" in line for line in messages)  # a request would be seen
