"""The files that jobs create: a folder per job on each node, and `cluster results` by the real command."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from job_steps import borrowed
from project import Project

pytestmark = pytest.mark.sandbox

SAVE = """
import os, sys
os.makedirs("out", exist_ok=True)
if os.environ["CLUSTER_HOST"] in sys.argv[2:]:
    with open(f"out/{sys.argv[1]}", "w") as stream:
        stream.write(os.environ["CLUSTER_HOST"])
print(sorted(os.listdir("out")))
"""


@pytest.fixture
def nodes(two_nodes: Project) -> Iterator[Project]:
    with borrowed(two_nodes):
        (two_nodes.directory / "save.py").write_text(SAVE)
        yield two_nodes


def train(project: Project, *words: str) -> tuple[str, str, str]:
    """Returns a job's id, its output, and what is said at its end."""
    done = project.run("train", "--launcher", "env", "save.py", *words)
    job = re.findall(r"^job (\S+): done", done.stderr, re.MULTILINE)[0]
    return job, done.stdout, done.stderr.partition(": done\n")[2]


def files_in(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_each_jobs_files_are_its_own_and_are_copied_from_all_nodes(nodes: Project) -> None:
    """The printed command finds the file that one worker wrote on node-1; the job before left nothing to it."""
    folder = nodes.directory / "results"
    first, _, said = train(nodes, "a", "node-1")
    below = "below /home/ubuntu/.cluster/jobs"
    assert said == f"1 new file in out/ on node-1, {below}/{first}; to copy them:\n    cluster results {first}\n"
    second, printed, _ = train(nodes, "b", "node-0", "node-1")
    assert printed.count("['b']") == 2
    done = nodes.run("results", first)
    assert done.stderr == f"copied 1 file (6 bytes) from node-1 to results/{first}\n"
    assert files_in(folder / first) == {"out/a": "node-1"}
    done = nodes.run("results")
    assert files_in(folder / second) == {"node-0/out/b": "node-0", "node-1/out/b": "node-1"}
    assert "node-0 and node-1 both have out/b" in done.stderr
    assert "copied 0 files (0 bytes) from node-0, node-1" in nodes.run("results").stderr
    shown = nodes.run("jobs").stdout
    where = f"1 new file in out/ on node-0, 1 new file in out/ on node-1, {below}/{second}"
    assert f"files of {second}: {where}; cluster results {second} copies them" in shown
    assert f"files of {first}: 1 new file in out/ on node-1, {below}/{first};" in nodes.run("jobs", first).stdout


def test_what_a_job_has_saved_in_s3_is_copied_too_but_not_its_record(nodes: Project) -> None:
    (nodes.directory / "model").write_text("in S3")
    nodes.run("data", "put", "--create-bucket", "model", "s3://cluster-results/other/model")
    with nodes.configured(results="s3://cluster-results/jobs"):
        job, _, said = train(nodes, "a", "node-0")
        assert said.endswith(
            f"; results in s3://cluster-results/jobs/{job}/; to copy them:\n    cluster results {job}\n"
        )
        nodes.run("data", "put", "model", f"s3://cluster-results/jobs/{job}/model")
        done = nodes.run("results", job, "all")
    assert done.stderr == "copied 2 files (11 bytes) from node-0, s3 to all\n"
    assert files_in(nodes.directory / "all") == {"out/a": "node-0", "model": "in S3"}


REPORT = """
import os
for batch in (10, 20):
    print(f"Epoch[0] Batch [{batch}]  Speed: {batch}.5 samples/sec  accuracy=0.25")
os.makedirs("out", exist_ok=True)
"""


def test_the_page_of_a_job(nodes: Project) -> None:
    """Its curves have what each rank printed; its path is printed; two jobs have one page."""
    (nodes.directory / "speed.py").write_text(REPORT)
    done = nodes.run("train", "--launcher", "env", "speed.py")
    job = re.findall(r"^job (\S+): done", done.stderr, re.MULTILINE)[0]
    numbers = json.loads(nodes.run("report", "--json").stdout)[0]["numbers"]
    for rank in ("rank 0", "rank 1"):
        assert [value for _, value in numbers["samples/s"]["ranks"][rank]["points"]] == [10.5, 20.5]
    assert numbers["accuracy"]["together"]["mean"] == 0.25
    assert nodes.run("report", job).stdout == f"report-{job}.html\n"
    page = (nodes.directory / f"report-{job}.html").read_text()
    assert "samples/s by rank" in page
    assert "c5.xlarge" in page
    nodes.run("train", "--launcher", "env", "-n", "1", "--name", "other", "--", "true")
    shown = nodes.run("report", "--compare", "-o", "-").stdout
    assert shown.startswith("<!doctype html>")
    assert "2 jobs: other, speed" in shown
