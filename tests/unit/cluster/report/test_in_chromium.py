"""The page in a browser: it draws, says nothing on the console, and asks nothing of the network."""

from pathlib import Path

import pytest
from PIL import Image

from chromium import load, needs_chromium
from cluster.report import JobData, render_report
from job_records import make_record
from report_logs import START, begin, read, speed

EVIL = '<img src="https://example.com/x.png" onerror="alert(1)"><script>console.log("ran")</script>'

pytestmark = [pytest.mark.slow, needs_chromium]


def make_page() -> str:
    history = read(*begin(1), *(speed(at, 0, 100 + at, f"  {EVIL}=1", epoch=at) for at in range(20)))
    record = make_record(1, error=EVIL, warnings=[EVIL])
    return render_report([JobData(record=record, history=history, now=START + 1000)])


def count_colours(path: Path) -> int:
    with Image.open(path) as picture:
        return len(picture.convert("RGB").getcolors(1 << 24) or [])


def test_the_page_draws_and_asks_for_nothing(tmp_path: Path) -> None:
    page, shot = tmp_path / "page.html", tmp_path / "shot.png"
    page.write_text(make_page())
    assert load(page, f"--screenshot={shot}", "--window-size=1280,2000")[0] == []
    assert count_colours(shot) > 100
    page.write_text(make_page().replace("<main>", f"<main>{EVIL}"))
    messages, _ = load(page, f"--screenshot={shot}")
    assert any("example.com" in line for line in messages)  # a request would be seen
