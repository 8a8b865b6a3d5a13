"""`cluster train`: the input of a job's command, how it ends, and what it reports and leaves behind."""

import json
import re
import signal
from typing import TYPE_CHECKING

import pytest

from job_steps import (
    END_S,
    ONE_WORKER,
    ec2_of,
    gone,
    only_these_ports_between_members,
    python,
)
from mxnet_cluster.recordio import encode_record
from odd_words import CHECK, VALUE, WORDS
from project import Project, processes_of

if TYPE_CHECKING:
    from mypy_boto3_ec2.client import EC2Client

pytestmark = pytest.mark.sandbox

# Adds up over the kv-store; its argument is the exit code of rank 1.
SUM = """
import os, sys, mxnet as mx
kv = mx.kv.create("dist_sync")
kv.init("a", mx.nd.zeros((2, 3)))
kv.push("a", mx.nd.ones((2, 3)))
out = mx.nd.zeros((2, 3))
kv.pull("a", out=out)
print("sum", out.asnumpy().sum(), "AWS_SECRET_ACCESS_KEY" in os.environ)
sys.exit(int(sys.argv[1]) if kv.rank == 1 else 0)
"""


@pytest.mark.slow
def test_ctrl_c_comes_through_a_flood_of_output(two_nodes: Project) -> None:
    with two_nodes.following("train", *ONE_WORKER, "--", "yes") as process:
        assert process.stdout is not None
        for _ in range(1000):
            assert process.stdout.readline() == "[worker 0 node-0] y\n", two_nodes.messages.read_text()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=END_S)
    said = two_nodes.messages.read_text()
    assert process.returncode == 130
    (job,) = re.findall(r"^job (\S+) is still running", said, re.MULTILINE)
    two_nodes.run("stop", job)
    gone(job)


def test_what_cannot_run_begins_no_job(two_nodes: Project) -> None:
    before = json.loads(two_nodes.run("jobs", "--json").stdout)
    done = two_nodes.run("train", "--", "no-such-program", code=2)
    assert "no-such-program: no such program on the nodes" in done.stderr
    done = two_nodes.run("train", "no-such-script.py", code=2)
    assert "no-such-script.py: there is no such script in " in done.stderr
    assert json.loads(two_nodes.run("jobs", "--json").stdout) == before


def test_own_modules_with_common_names_are_imported_and_so_is_the_record_reader(two_nodes: Project) -> None:
    folder = two_nodes.directory / "common"
    folder.mkdir()
    for name in ("train", "data", "records", "bootstrap", "foundation"):
        (folder / f"{name}.py").write_text(f"own = 'my {name}'\n")
    (folder / "a.rec").write_bytes(encode_record(b"payload"))
    (folder / "program.py").write_text(
        "import bootstrap, data, foundation, records, train\n"
        "from mxnet_cluster.records import iterate_records\n"
        "print(train.own, data.own, records.own, *iterate_records('common/a.rec'))\n"
    )
    said = two_nodes.run("train", "--", "python", "common/program.py").stdout
    assert said.count("my train my data my records b'payload'") >= 2


def test_what_a_process_leaves_behind_is_ended(two_nodes: Project) -> None:
    """A child in its own session, with the pipe still open, does not delay the end and does not survive it."""
    program = 'if [ "$DMLC_ROLE" = worker ]; then setsid sleep 600 & echo done; else sleep 600; fi'
    done = two_nodes.run("train", "--", "sh", "-c", program)
    assert len(re.findall(r"^\[worker \? node-\d\] done", done.stdout, re.MULTILINE)) == 2
    (job,) = set(re.findall(r"job ([0-9a-f-]+): done", done.stderr))
    assert not processes_of("CLUSTER_JOB_ID", job)


def test_words_reach_the_command_as_they_are(two_nodes: Project) -> None:
    """The arguments, the path of the script, and the job's variables."""
    folder = two_nodes.directory / "it's %41"
    folder.mkdir()
    (folder / "-x ä.py").write_text(CHECK)
    done = two_nodes.run("train", "--env", f"ODD={VALUE}", "--", "python", "it's %41/-x ä.py", *WORDS)
    assert done.stdout.count("] words arrived\n") == 5, done.stdout  # of 2 workers, 2 servers and the scheduler


# Each step needs both workers' values. Without _cluster_compat.py all three hang for ever: MXNet drops
# operations that its engine has not begun when Python exits, and a failing worker waits for the others in a destructor.
STEPS = """
import sys
import mxnet as mx

kv = mx.kv.create("dist_sync")
rank, how = kv.rank, sys.argv[1]
value = mx.nd.ones((300000,))
kv.init(0, value)
for step in range(30):
    kv.push(0, value)
    kv.pull(0, out=value)
    if rank == 0 or how != "end":
        value.wait_to_read()
    if step == 5 and rank == 1 and how == "raise":
        raise ValueError("on purpose")
    if step == 5 and rank == 1 and how == "exit":
        sys.exit(7)
print("end of", rank, flush=True)
"""


@pytest.mark.parametrize(
    ("how", "code", "said"),
    [
        pytest.param("end", 0, "end of 1", marks=pytest.mark.slow),
        ("raise", 1, "ValueError: on purpose"),
        pytest.param("exit", 7, "", marks=pytest.mark.slow),
    ],
)
def test_a_worker_ends_however_its_script_does(two_nodes: Project, how: str, code: int, said: str) -> None:
    done = two_nodes.run("train", "-s", "1", "--", "python", "-c", STEPS, how, code=code, timeout_s=60)
    assert said in done.stdout
    assert ("end of 0" in done.stdout) is (how == "end")
    assert (f"ended with exit code {code}" in done.stderr) is (code != 0)


# -- a security group without the rule between its members -------------------------------------------------------------


@pytest.fixture
def ec2(two_nodes: Project, monkeypatch: pytest.MonkeyPatch) -> "EC2Client":
    return ec2_of(two_nodes, monkeypatch)


@pytest.mark.slow
def test_training_needs_the_rule_between_members(two_nodes: Project, ec2: "EC2Client") -> None:
    with only_these_ports_between_members(ec2):
        failed = two_nodes.run("train", *python(SUM), "0", code=None)
        assert failed.returncode != 0
        assert "sum" not in failed.stdout
        assert "port 22" in failed.stderr
        assert "timed out" in failed.stderr
    done = two_nodes.run("train", *python(SUM), "0")
    assert done.stdout.count("sum 12.0") == 2


# -- Open MPI ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_without_open_mpi_its_absence_is_told(two_nodes: Project) -> None:
    failed = two_nodes.run("train", "--launcher", "mpi", "--", "true", code=1)
    assert 'mpi needs Open MPI on every node: [bootstrap] setup = ["sudo apt-get install -y open' in failed.stderr
