"""Every CPU wheel of MXNet in the oracle's table, on real hosts: which rank has printed a line.

The versions print different paths in ps-lite's lines.
"""

import re
from pathlib import Path

import pytest

from job_steps import records
from project import Project, cluster_in, shipped
from provision.oracle.tables import WHEELS

pytestmark = [pytest.mark.sandbox, pytest.mark.slow, pytest.mark.timeout(1800)]

CPU_WHEELS = [wheel.requirement for wheel in WHEELS if wheel.cuda is None]
RANKS = "import mxnet as mx; kv = mx.kv.create('dist_sync'); print('I am', kv.rank, flush=True); mx.nd.waitall()"


@pytest.mark.parametrize("wheel", CPU_WHEELS)
def test_a_cpu_wheel(wheel: str, tmp_path: Path) -> None:
    with cluster_in(tmp_path, shipped(mxnet=wheel)) as project:
        ranks_are_known(project)


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
