"""Every CPU wheel of MXNet in the oracle's table, on real hosts: its output, and how it is interpreted.

The versions print different paths in ps-lite's lines, and different error messages.
"""

import re
from pathlib import Path

import pytest

from job_steps import fail, records
from project import Project, cluster_in, shipped
from provision.oracle.tables import WHEELS

pytestmark = [pytest.mark.sandbox, pytest.mark.slow, pytest.mark.timeout(1800)]

CPU_WHEELS = [wheel.requirement for wheel in WHEELS if wheel.cuda is None]
RANKS = "import mxnet as mx; kv = mx.kv.create('dist_sync'); print('I am', kv.rank, flush=True); mx.nd.waitall()"
# Each fails in a worker with a traceback of this wheel.
MISTAKES = {
    "mx.io.ImageRecordIter(path_imgrec='/no/a.rec', data_shape=(3, 8, 8), batch_size=1)": "MXNet finds no such file",
    "mx.nd.zeros((2, 2), ctx=mx.gpu()).wait_to_read()": "this MXNet has no GPU support",
    "mx.gluon.utils.download('http://host.invalid/x.zip')": "the node cannot resolve",
}


@pytest.mark.parametrize("wheel", CPU_WHEELS)
def test_a_cpu_wheel(wheel: str, tmp_path: Path) -> None:
    with cluster_in(tmp_path, shipped(mxnet=wheel)) as project:
        ranks_are_known(project)
        mistakes_get_hints(project)
        compression_works_or_gets_a_hint(project, works=wheel in {"mxnet==1.5.1.post0", "mxnet==1.6.0"})


def ranks_are_known(project: Project) -> None:
    done = project.run("train", "--name", "ranks", "--", "python", "-c", RANKS)
    shown = [line for line in done.stdout.splitlines() if " I am " in line]
    assert len(shown) == 2
    # Every line of an ended job has its rank, and no line of ps-lite is shown.
    logs = project.run("logs", "ranks").stdout
    assert sorted(re.findall(r"^\[worker (\d) node-\d\] I am \1$", logs, re.MULTILINE)) == ["0", "1"]
    assert "van.cc" not in logs
    assert "zmq_van" not in logs
    of_rank = project.run("logs", "--rank", "1", "ranks").stdout
    assert "I am 1" in of_rank
    assert "I am 0" not in of_rank
    (record,) = [one for one in records(project) if one["name"] == "ranks"]
    ranks = sorted((one["role"], one["rank"]) for one in record["roles"] if one["role"] in {"server", "worker"})
    assert ranks == [("server", 0), ("server", 1), ("worker", 0), ("worker", 1)]


TRAINER = """
import mxnet as mx
net = mx.gluon.nn.Dense(2)
net.initialize()
compression = {"type": "2bit", "threshold": 0.5}
parameters = net.collect_params()
trainer = mx.gluon.Trainer(parameters, "sgd", {}, kvstore=mx.kv.create("dist_sync"), compression_params=compression)
with mx.autograd.record():
    loss = net(mx.nd.ones((4, 3))).sum()
loss.backward()
trainer.step(4)
"""


def compression_works_or_gets_a_hint(project: Project, *, works: bool) -> None:
    if works:
        project.run("train", "--", "python", "-c", TRAINER)
        return
    failed = fail(project, "--", "python", "-c", TRAINER)
    assert re.search(r'^hint .*turn compression off; or set .* mxnet = "mxnet==1.6.0"', failed.stderr, re.MULTILINE)


def mistakes_get_hints(project: Project) -> None:
    for mistake, hint in MISTAKES.items():
        program = f"import mxnet as mx; kv = mx.kv.create('dist_sync'); {mistake}"
        failed = fail(project, "--", "python", "-c", program)
        pattern = rf"^hint \[worker \d node-\d\]: {re.escape(hint)}"
        assert re.search(pattern, failed.stderr, re.MULTILINE), failed.stdout + failed.stderr
