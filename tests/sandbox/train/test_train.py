"""`cluster train`: the input of a job's command, how it ends, and what it reports and leaves behind."""

import re

import pytest

from mxnet_cluster.recordio import encode_record
from odd_words import CHECK, VALUE, WORDS
from project import Project, processes_of

pytestmark = pytest.mark.sandbox


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
