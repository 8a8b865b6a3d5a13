"""The page of a job: complete, small, and inert whatever nodes and S3 say."""

import os
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from cluster.report import JobData, render_report, report_document, write_report
from cluster.report.analysis import find_metrics, find_slowest
from job_records import make_record
from node.job.scalars import SPEED
from node.protocol import Attempt, JobHost, Machine
from node.samples import GpuSample, ProcessSample, Sample
from report_logs import START, begin, entry, read, speed

VOID = {"meta", "br"}
EVIL = '"><script>alert(1)</script><img src=x onerror=alert(1)>\x1b[31m\u202e&amp;</svg></style>'


class Page(HTMLParser):
    """Reads a page: its elements, their attributes, and its text by element."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, list[str]] = {}
        self.open: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.setdefault(self.open[-1] if self.open else "", []).append(data)

    def find(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def make_job(*lines: bytes, **values: Any) -> JobData:
    record = replace(make_record(1), **{"started_at": START, "ended_at": START + 100, **values})
    return JobData(record=record, history=read(*lines), now=START + 200)


def speeds(each: int, *of_ranks: float) -> Iterator[bytes]:
    yield from begin(len(of_ranks))
    for step in range(each):
        for rank, value in enumerate(of_ranks):
            yield speed(100 * step / each, rank, value, "  accuracy=0.5", epoch=step)


def check_inert(html: str) -> Page:
    """Nothing runs, and nothing is asked of the network."""
    page = Page(html)
    tags = {tag for tag, _ in page.elements}
    assert tags.isdisjoint({"script", "img", "link", "iframe", "object", "embed", "form", "a", "use", "image", "base"})
    names = {name for _, attributes in page.elements for name in attributes}
    assert not any(name.startswith("on") for name in names)
    assert names.isdisjoint({"src", "href", "xlink:href", "srcset", "action", "data", "poster", "background"})
    assert not re.search(r"url\(|@import|expression\(", " ".join(page.text["style"]))
    assert re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", html) is None
    return page


def test_the_page_of_a_job() -> None:
    page = check_inert(render_report([make_job(*speeds(10, 100.0, 110.0))]))
    assert [text for text in page.text["h1"] if text.strip()] == ["train_mnist "]
    assert page.text["h2"] == ["Curves", "Ranks", "Timeline", "Data, files and cost", "What ran"]
    assert {"samples/s, all ranks", "samples/s by rank", "accuracy"} <= set(page.text["figcaption"])


def test_hostile_records_are_inert() -> None:
    attempts = tuple(Attempt(number=n, nodes=(), started_at=START, lost=(EVIL,)) for n in (1, 2))
    spec = replace(make_record(1).spec, name=EVIL, library=EVIL, image=EVIL, output_url=EVIL, command=(EVIL,))
    hosts = (JobHost(name=EVIL, instance_id=EVIL),)
    job = make_job(error=EVIL, warnings=(EVIL,), nodes=hosts, attempts=attempts, spec=spec)
    for jobs, least in (([job], 9), ([make_job(), job], 3)):
        page = check_inert(render_report(jobs))
        assert sum("<script>alert(1)" in text for texts in page.text.values() for text in texts) > least


def test_hostile_lines_are_inert() -> None:
    texts = [EVIL, f"Epoch[0] Batch [1] {EVIL}=1.5 <script>=2", f"loss: 1 epoch: 1 \x00{'x' * 1_000_000}"]
    lines = (entry(1, p=0, line=text) for text in texts)
    end = entry(3, result={"state": "failed", "exit_code": 1, "culprit": 0})
    html = render_report([make_job(*begin(1), *lines, entry(2, message=EVIL), end)])
    page = check_inert(html)
    assert len(html) < 100_000
    assert any(EVIL[:20] in line for line in page.text["pre"])


@pytest.mark.parametrize("ranks", [1, 8, 64, 300])
def test_the_page_of_many_ranks_is_small(ranks: int) -> None:
    values = [100.0 + rank for rank in range(ranks)]
    html = render_report([make_job(*speeds(60 if ranks < 300 else 3, *values))])
    assert len(html) < 1_000_000
    page = check_inert(html)
    shown = {path["class"] for path in page.find("path") if str(path.get("class")).startswith("curve")}
    single = {f"curve s{number}" for number in range(min(ranks, 4 if ranks > 8 else 8))}
    together = {"curve all"} if ranks > 1 else set()
    assert shown == single | together
    tables = re.findall("<table>.*?</table>", html, re.DOTALL)
    by_rank = next((table for table in tables if re.search(r"samples/s by rank( \(|<)", table)), "")
    assert bool(re.search(f">mean</th>.*>{100 + (ranks - 1) / 2:g}<", by_rank, re.DOTALL)) is (ranks > 1)
    assert all(table.count("<tr>") <= 201 for table in tables)
    assert ("(the first 200 of 300)" in html) is (ranks == 300)


@pytest.mark.parametrize(
    ("values", "label"),
    [((100.0, 101.0, 60.0, 99.0), "rank 2"), ((100.0, 60.0), "rank 1"), ((100.0, 95.0), None), ((100.0,), None)],
)
def test_the_slowest_rank_is_named(values: tuple[float, ...], label: str | None) -> None:
    job = make_job(*speeds(10, *values))
    found = find_slowest(find_metrics(job), job)
    assert (found and found[0]) == label
    assert ("The slowest is" in render_report([job])) == (label is not None)


def test_of_equal_speeds_the_rank_that_waits_least_is_named() -> None:
    job = make_job(*speeds(10, 100.0, 100.0))
    busy = (ProcessSample(p=0, cpu=0.5), ProcessSample(p=1, cpu=0.9))
    samples = [
        Sample(t=START + at, host=f"node-{one.p}", over_s=5.0, processes=(one,))
        for at in range(5, 60, 5)
        for one in busy
    ]
    assert "The slowest is rank 1: worker 1 on node-1 waits least" in render_report([replace(job, samples=samples)])


def test_a_failed_job_shows_its_error_and_the_hint() -> None:
    """A hint that is the cause is shown once."""
    error = entry(1, p=1, line="ModuleNotFoundError: No module named 'gluonnlp'")
    result = {"state": "failed", "exit_code": 1, "error": "worker 1 failed", "culprit": 1}

    def render(**more: str) -> Page:
        lines = (*begin(2), error, entry(2, result={**result, **more}))
        return Page(render_report([make_job(*lines, state="failed", exit_code=1, error="worker 1 failed")]))

    page = render()
    assert page.text["h3"] == ["The last lines of worker 1 node-1, which failed first"]
    assert "gluonnlp" in "".join(page.text["pre"])
    start = "Hint [worker 1 node-1]: "
    hint = next(text.removeprefix(start) for text in page.text["p"] if text.startswith(start))
    assert [text for text in render(cause=hint).text["p"] if hint in text] == [f"Cause: {hint}"]


@pytest.mark.parametrize("value", ["nan", "1e+300"])
def test_a_number_that_cannot_be_drawn(value: str) -> None:
    losses = {0: "Epoch[0] Batch [1] loss=1", 65: f"Epoch[0] Batch [1] loss={value}"}
    page = Page(render_report([make_job(*begin(1), *(entry(at, p=0, line=text) for at, text in losses.items()))]))
    assert "loss" in page.text["figcaption"]
    assert "Warning: loss became nan, inf or over 1e+100, first on worker 0 node-0" in page.text["p"]
    assert "1:05" in page.text["th"]


def test_machines_and_samples_of_nodes() -> None:
    machine = Machine(type="g5.xlarge", zone="us-east-1a", driver="550.54", gpus=("NVIDIA A10G",))
    samples = tuple(
        Sample(
            t=START + at, host="node-0", over_s=5, cpu=50, received=2e9, gpus=(GpuSample(index=0, use=90),),
            processes=(ProcessSample(p=0, cpu=1.5), ProcessSample(p=1, cpu=0.5)),
        )
        for at in range(0, 100, 5)
    )  # fmt: skip
    job = make_job(*speeds(3, 100.0, 110.0), nodes=(JobHost(name="node-0", machine=machine),))
    record = replace(job.record, spec=replace(job.record.spec, packages=("torch==2.13.0", "numpy==2.3")))
    html = render_report([replace(job, record=record, samples=samples)])
    page = Page(html)
    axis = html.split("<figcaption>CPU, % of all cores")[1].split('class="axis y')[1].split('class="axis x')[0]
    assert ">0</text>" in axis
    captions = set(page.text["figcaption"])
    assert {"CPU, % of all cores", "GPU use, %, mean of its GPUs", "Cores used, by rank"} <= captions
    assert {"Disk read, MB/s", "GPU power, W, all of its GPUs"}.isdisjoint(captions)
    assert {"g5.xlarge", "us-east-1a", "1 x NVIDIA A10G", "550.54"} <= set(page.text["td"])
    assert {"200 GB", "550.54", "torch==2.13.0 numpy==2.3"} <= set(page.text["dd"])


def test_the_numbers_of_all_ranks_are_those_of_each() -> None:
    """Of which there are far more than the points that are drawn; the first and the last are what the ranks printed."""
    lines = [speed(n / 9, rank, 100 + n / 9, f"  accuracy={(n + rank) / 2000}") for n in range(900) for rank in (0, 1)]
    job = make_job(*begin(2), *lines)
    ranks, (first, last, least, greatest, mean) = find_metrics(job)[1].ranks.values(), find_metrics(job)[1].summary
    assert (first, last, least, greatest) == (0.00025, 0.44975, 0, 0.45)
    assert mean == sum(curve.summary.mean for curve in ranks) / 2
    assert find_metrics(job)[0].summary[:2] == pytest.approx((200, 200 + 2 * 899 / 9))
    page = Page(render_report([job]))
    assert {"0.4497", "399.8"} <= {*page.text["td"], *page.text["b"]}


def test_several_jobs_are_compared() -> None:
    first, second = (make_job(*speeds(10, value)) for value in (100.0, 200.0))
    spec = replace(second.record.spec, workers=4, train=replace(second.record.spec.train, kv_store="dist_async"))
    second = replace(second, record=replace(second.record, spec=replace(spec, id="20261127-000000-abc")))
    page = check_inert(render_report([first, second]))
    assert page.text["h2"][:3] == ["Results", "Curves", "Settings that differ"]
    assert set(page.text["figcaption"]) == {SPEED, "accuracy"}
    assert {"workers", "[train] kv_store"} <= set(page.text["th"])


def test_who_can_read_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has lines of the log: the user's umask decides."""
    monkeypatch.setattr("cluster.report.render_report", lambda _: "page")
    before = os.umask(0o077)
    try:
        write_report(tmp_path / "a.html", [])
    finally:
        os.umask(before)
    assert (tmp_path / "a.html").stat().st_mode & 0o777 == 0o600


def test_the_numbers_as_json() -> None:
    document = report_document(make_job(*speeds(3, 100.0, 50.0)))
    found = document["curves"][SPEED]
    assert found["ranks"]["rank 0"]["points"] == [(0.0, 100.0), (33.333, 100.0), (66.667, 100.0)]
    assert [found["together"][name] for name in ("mean", "least", "greatest")] == [150, 150, 150]
    assert document["slowest"]["label"] == "rank 1"
    assert (document["lines"], document["examined"]) == (6, 6)


def test_a_job_without_any_line() -> None:
    page = check_inert(render_report([make_job(started_at=None, ended_at=None, state="queued")]))
    assert any("reported no numbers" in text for text in page.text["p"])
