"""The files that jobs create, a folder per job on each node, and their page: `cluster results` and `cluster report`."""

import json
import re
from pathlib import Path

import pytest

from project import Project

pytestmark = pytest.mark.sandbox

SAVE = """
import os, sys
for batch in (10, 20):
    print(f"Epoch[0] Batch [{batch}]  Speed: {batch}.5 samples/sec  accuracy=0.25")
os.makedirs("out", exist_ok=True)
if os.environ["CLUSTER_HOST"] in sys.argv[2:]:
    with open(f"out/{sys.argv[1]}", "w") as stream:
        stream.write(os.environ["CLUSTER_HOST"])
print(sorted(os.listdir("out")))
"""


def train(project: Project, *words: str) -> tuple[str, str, str]:
    """Returns a job's id, its output, and what is said at its end."""
    done = project.run("train", "--launcher", "env", "save.py", *words)
    job = re.findall(r"^job (\S+): done", done.stderr, re.MULTILINE)[0]
    return job, done.stdout, done.stderr.partition(": done\n")[2]


def files_in(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_each_jobs_files_are_its_own_and_are_copied_from_everywhere(nodes: Project) -> None:
    """The printed command finds the file that one worker wrote on node-1; the job before left nothing to it.

    What a job has saved in S3 is copied, too, but not its record.
    """
    (nodes.directory / "save.py").write_text(SAVE)
    first, _, output = train(nodes, "a", "node-1")
    below = "below /home/ubuntu/.cluster/jobs"
    assert output == f"1 new file in out/ on node-1, {below}/{first}; to copy them:\n    cluster results {first}\n"
    (nodes.directory / "model").write_text("in S3")
    nodes.run("data", "put", "--create-bucket", "model", "s3://cluster-results/other/model")
    with nodes.configured(results="s3://cluster-results/jobs"):
        second, printed, output = train(nodes, "b", "node-0", "node-1")
        nodes.run("data", "put", "model", f"s3://cluster-results/jobs/{second}/model")
        both = nodes.run("results")
    assert printed.count("['b']") == 2
    into = f"; results, if any, in s3://cluster-results/jobs/{second}/; to copy them:\n    cluster results {second}\n"
    assert output.endswith(into)
    assert "node-0 and node-1 both have out/b" in both.stderr
    copied = files_in(nodes.directory / "results" / second)
    assert copied == {"node-0/out/b": "node-0", "node-1/out/b": "node-1", "s3/model": "in S3"}
    done = nodes.run("results", first, "there")
    assert done.stderr == "copied 1 file (6 bytes) from node-1 to there\n"
    assert files_in(nodes.directory / "there") == {"out/a": "node-1"}
    where = f"1 new file in out/ on node-0, 1 new file in out/ on node-1, {below}/{second}"
    assert f"files of {second}: {where}; results, if any, in s3://" in nodes.run("jobs").stdout

    # The curves of a page have what each rank printed, and its path is printed. Two jobs have one page.
    numbers = json.loads(nodes.run("report", "--json").stdout)[0]["curves"]
    for rank in ("rank 0", "rank 1"):
        assert [value for _, value in numbers["samples/s"]["ranks"][rank]["points"]] == [10.5, 20.5]
    assert numbers["accuracy"]["together"]["mean"] == 0.25
    assert nodes.run("report", second).stdout == f"report-{second}.html\n"
    page = (nodes.directory / f"report-{second}.html").read_text()
    assert "samples/s by rank" in page
    assert "c5.xlarge" in page
    shown = nodes.run("report", "--compare", "-o", "-").stdout
    assert shown.startswith("<!doctype html>")
    assert "2 jobs: " in shown
