"""Jobs by the real command: what they get and print, how they are followed and stopped, and how they end."""

import json
import re
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from job_steps import ONE_WORKER, STRANGER, Tell, check, gone, hosts_of, python, records, running
from mxnet_cluster.recordio import encode_record
from odd_words import CHECK, VALUE, WORDS
from project import CLUSTER, Project, processes_of
from waits import until

pytestmark = pytest.mark.sandbox

TIMEOUT_S = 60.0
# Reports a number, and ends once its node has been sampled.
SAMPLED = """
import os, time
print("Epoch[0] Train-accuracy=0.5")
while not os.path.exists(os.path.expanduser("~/.cluster/jobs/" + os.environ["CLUSTER_JOB_ID"] + "/samples")):
    time.sleep(0.1)
print(os.environ["CLUSTER_OUTPUT_URL"])
"""
# Two workers with different numbers of batches.
UNEVEN = """
import mxnet as mx
kv = mx.kv.create("dist_sync")
kv.init("a", mx.nd.zeros((5, 5)))
out = mx.nd.zeros((5, 5))
print("waits for nobody as rank", kv.rank, flush=True)
for step in range(3 + 3 * kv.rank):
    kv.push("a", mx.nd.ones((5, 5)))
    kv.pull("a", out=out)
    out.wait_to_read()
"""
WAIT = "import time; print('here', flush=True); time.sleep(600)"


def counted(output: str) -> list[int]:
    return [int(number) for number in re.findall(r"^\[worker 0 node-0\] line (\d+)$", output, re.MULTILINE)]


def test_a_job_outlives_a_client_that_was_killed(nodes: Project) -> None:
    program = "import sys, time\nfor n in range(30): print('line', n, flush=True); time.sleep(0.1)\nsys.exit(4)"
    with nodes.following("train", *ONE_WORKER, *python(program)) as process:
        assert process.stdout is not None
        assert process.stdout.readline().endswith("line 0\n"), nodes.messages.read_text()
        process.kill()
    done = nodes.run("logs", "-f", code=4)
    assert counted(done.stdout) == list(range(30))
    assert "exit code 4" in done.stderr
    assert "no new files on node-0, below" in done.stderr  # the job ran when the command began


def test_without_a_terminal_a_job_is_left_running_and_it_is_said_how_to_stop_it(nodes: Project) -> None:
    with nodes.following("train", *ONE_WORKER, *python(WAIT)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "[worker 0 node-0] here\n", nodes.messages.read_text()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=TIMEOUT_S)
    output = nodes.messages.read_text()
    assert process.returncode == 130
    (job,) = re.findall(r"job (\S+) continues: cluster logs -f \S+ follows it, cluster stop \S+ stops it", output)
    status = json.loads(nodes.run("status", "--json").stdout)["job"]
    assert (status["id"], status["state"], status["queued"]) == (job, "running", 0)
    stopped = nodes.run("stop").stdout
    assert f"job {job} (python) is stopped: worker 0 on node-0" in stopped
    assert "no process of the job is left on node-0" in stopped
    gone(job)
    assert nodes.run("logs", "-f", job, code=130).stdout.startswith("[worker 0 node-0] here\n")


def test_jobs_outlive_their_head_in_s3(nodes: Project) -> None:
    (nodes.directory / "any-object").write_text("x")
    nodes.run("data", "put", "--create-bucket", "any-object", "s3://cluster-jobs/any-object")
    with nodes.configured(results="s3://cluster-jobs/results/"):
        done = nodes.run("train", "--name", "kept", *ONE_WORKER, *python(SAMPLED))
        (job,) = (record["id"] for record in records(nodes) if record["name"] == "kept")
        assert done.stdout.endswith(f"] s3://cluster-jobs/results/{job}/\n")
        supervisors = hosts_of(nodes)["node-0"].programs
        until(lambda: not supervisors("supervise"), "it copies for ever")
        shutil.rmtree(hosts_of(nodes)["node-0"].root / "home/ubuntu/.cluster/jobs" / job)
        (found,) = [one for one in json.loads(nodes.run("jobs", "--json").stdout) if one["id"] == job]
        assert (found["source"], found["state"]) == ("s3", "done")
        assert nodes.run("logs", "-f", "kept").stdout == done.stdout
        row = json.loads(nodes.run("jobs", "kept", "--metrics", "--json").stdout)  # of one line
        assert (row["rank"], row["node"], row["numbers"]) == (0, "node-0", {"accuracy": 0.5})
        kept = nodes.run("data", "ls", "-r", f"s3://cluster-jobs/results/{job}/").stdout
        assert f"{job}/samples" in kept
        assert f"{job}/tensorboard/worker-0/events.out.tfevents." in kept


def test_a_worker_is_killed_below_one_agent_on_each_node(nodes: Project, record_property: Tell) -> None:
    """The agent is above all ranks of a job of launch.py, and nothing of ours is between them.

    Every process ends, also a child without the job's parent, session and environment.
    """
    program = f"(env -i setsid {' '.join(STRANGER)} &); echo waits; exec sleep 600"
    with running(nodes, "-s", "2", command=("--", "sh", "-c", program)) as job:
        assert job.tree("node-1") == {"agent below others": 1, "sleep below agent": 2}
        # On the head, launch.py also starts the scheduler, and the supervisor has its ssh to node-1.
        assert job.tree("node-0") == {
            "agent below others": 1,
            "ssh below others": 1,
            "launch below agent": 1,
            "waiting shell below launch": 1,
            "sleep below agent": 3,
        }
        job.kill(job.process_on("node-1", program="sleep"))
        output = r"failed: worker on node-1 \(process \d+\) was killed by signal 9"
        check("worker killed", job, (137, output), record_property)


def test_a_worker_with_fewer_batches_is_named(nodes: Project, record_property: Tell) -> None:
    """It has ended its script, and waits for the other at the end of the program; stall_timeout ends the job."""
    stall_s = 6
    (nodes.directory / "stall.toml").write_text(f'stall_timeout = "{stall_s}s"\n')
    with running(nodes, "--job", "stall.toml", "-s", "1", command=python(UNEVEN), waiting=2) as job:
        job.struck_at = time.monotonic()
        ended = r"worker 0 on node-\d is at the end of the program \(KVStore.__del__\)"
        waits = r"worker 1 on node-\d waits at <string>:10 \(NDArray.wait_to_read\)"
        words = rf"no worker made progress for 6 s \(stall_timeout\): {ended}; {waits}; the kv-store waits for what "
        words += r"worker 0 on node-\d pushes"
        # Two looks, a try of all ports, and a busy machine.
        check("different numbers of batches", job, (124, words), record_property, silence_s=2 * stall_s + 20)


PROGRAM = f"""
{CHECK}
import subprocess
import bootstrap, data, foundation, records, train
from mxnet_cluster.records import iterate_records
print(train.own, data.own, records.own, *iterate_records("common/a.rec"), flush=True)
subprocess.Popen(["setsid", "sleep", "600"])
"""


def test_a_program_gets_its_words_and_its_own_modules_and_leaves_nothing(two_nodes: Project) -> None:
    """The arguments, the path of the script, and the job's variables, as they are. Modules may have our names."""
    folder = two_nodes.directory / "common" / "it's %41"
    folder.mkdir(parents=True)
    for name in ("train", "data", "records", "bootstrap", "foundation"):
        (folder / f"{name}.py").write_text(f"own = 'my {name}'\n")
    (folder.parent / "a.rec").write_bytes(encode_record(b"payload"))
    (folder / "-x ä.py").write_text(PROGRAM)
    done = two_nodes.run("train", "--env", f"ODD={VALUE}", "--", "python", "common/it's %41/-x ä.py", *WORDS)
    assert done.stdout.count("] words arrived\n") == 5, done.stdout  # of 2 workers, 2 servers and the scheduler
    assert done.stdout.count("my train my data my records b'payload'") == 5
    (job,) = re.findall(r"^job (\S+): done", done.stderr, re.MULTILINE)
    assert not processes_of(job)


# Each step needs both workers' values. Without _cluster_compat.py it hangs for ever: a failing worker waits for the
# others in a destructor.
STEPS = """
import mxnet as mx

kv = mx.kv.create("dist_sync")
value = mx.nd.ones((300000,))
kv.init(0, value)
for step in range(30):
    kv.push(0, value)
    kv.pull(0, out=value)
    value.wait_to_read()
    if step == 5 and kv.rank == 1:
        raise ValueError("on purpose")
print("end of", kv.rank, flush=True)
"""


def test_a_worker_that_fails_ends_the_job(two_nodes: Project) -> None:
    done = two_nodes.run("train", "-s", "1", "--", "python", "-c", STEPS, code=1, timeout_s=60)
    assert "ValueError: on purpose" in done.stdout
    assert "end of 0" not in done.stdout
    assert "ended with exit code 1" in done.stderr


ODD = r"""
import sys
sys.stdout.buffer.write(b"caf\xe9 \xc3\n" + b"x" * 300_000 + b"\n" + b"y" * 5_000_000 + b"\nend\n")
sys.stdout.flush()
input("Continue? ")
"""


def test_odd_output_and_a_question(nodes: Project, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with out.open("wb") as stdout:
        command = [CLUSTER, "train", "--launcher", "env", "-n", "1", "--", "python", "-c", ODD]
        ended = subprocess.run(
            command,
            check=False,
            cwd=nodes.directory,
            env=nodes.environment(),
            stdout=stdout,
            stderr=subprocess.PIPE,
            timeout=120,
        )
    assert ended.returncode == 1
    assert b"a job has no keyboard to read from" in ended.stderr
    first, *rest = out.read_bytes().removesuffix(b"\n").split(b"\n")
    prefix = b"[worker 0 node-0] "
    assert first == prefix + b"caf\xe9 \xc3"
    texts = [line.removeprefix(prefix) for line in rest]
    end = texts.index(b"end")
    assert b"".join(texts[:end]) == b"x" * 300_000 + b"y" * 5_000_000
    assert max(map(len, texts)) == 65536
    assert texts[end + 1].startswith(b"Continue? ")
    assert texts[-1] == b"EOFError: EOF when reading a line"


@pytest.mark.parametrize(
    ("sink", "message"),
    [
        ("| head -n 1", "continues"),
        pytest.param("> /dev/full", "No space left on device", marks=pytest.mark.slow),
    ],
)
def test_an_output_that_takes_no_more(nodes: Project, sink: str, message: str) -> None:
    script = "import time; print('first', flush=True); time.sleep(2); print('second', flush=True); time.sleep(100)"
    command = f"set -o pipefail; {CLUSTER} train --launcher env -n 1 -- python -c {shlex.quote(script)} {sink}"
    ended = subprocess.run(
        ["bash", "-c", command],
        check=False,
        cwd=nodes.directory,
        env=nodes.environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 1
    assert message in ended.stderr
    assert re.search(r"job \S+ continues: cluster logs -f", ended.stderr)
    assert "Traceback" not in ended.stderr
    (job,) = (record["id"] for record in records(nodes) if record["state"] == "running")
    nodes.run("stop", job)
