"""jax.distributed.initialize() without arguments, in a process of a job."""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from project import REPOSITORY
from real_mxnet import find_python, make_once, uv_install
from training_scripts import find_port

CODE = str(REPOSITORY / "node" / "setup" / "startup")
JAX = "jax==0.10.2"
VERSIONS = ("3.12", "3.11", "3.13")
JOB = {"JAX_COORDINATOR_ADDRESS": "10.0.0.4:29500", "JAX_NUM_PROCESSES": "4", "JAX_PROCESS_ID": "3"}
SLURM = {"SLURM_PROCID": "1"}
# JAX's packages, as small as possible: its classes for clusters, of which it uses the first that is present.
CLUSTER = """
class ClusterEnv:
    types = []
    def __init_subclass__(cls):
        cls.types.append(cls)
    @classmethod
    def get_local_process_id(cls):
        return None
"""
CLUSTERS = """
import os
from .cluster import ClusterEnv
class SlurmCluster(ClusterEnv):
    is_env_present = staticmethod(lambda: "SLURM_PROCID" in os.environ)
    get_process_count = staticmethod(lambda: 2)
    get_process_id = staticmethod(lambda: int(os.environ["SLURM_PROCID"]))
    get_local_process_id = staticmethod(lambda: 0)
"""
DISTRIBUTED = """
from jax._src import clusters
def initialize(count=None, number=None):
    env = next((env for env in clusters.ClusterEnv.types if env.is_env_present()), None)
    if env is None:
        return [count, number, None]
    count = env.get_process_count() if count is None else count
    return [count, env.get_process_id() if number is None else number, env.get_local_process_id()]
"""
OTHER_JAX = {"jax/_src/clusters/__init__.py": "", "jax/_src/distributed.py": "def initialize(): return 'its own'"}


@pytest.mark.parametrize(
    ("env", "arguments", "files", "found"),
    [
        pytest.param({}, "", {}, [None, None, None], id="outside a job"),
        pytest.param(JOB, "", {}, [4, 3, None], id="in a job, with all devices"),
        pytest.param(JOB, "count=2, number=1", {}, [2, 1, None], id="the program's arguments"),
        pytest.param(JOB | SLURM, "", {}, [2, 1, 0], id="srun inside a job"),
        pytest.param(JOB, "", OTHER_JAX, "its own", id="a JAX without these classes"),
    ],
)
def test_what_jax_finds(
    tmp_path: Path, env: dict[str, str], arguments: str, files: dict[str, str], found: object
) -> None:
    jax = {
        "jax/__init__.py": "",
        "jax/_src/__init__.py": "",
        "jax/_src/distributed.py": DISTRIBUTED,
        "jax/_src/clusters/__init__.py": CLUSTERS,
        "jax/_src/clusters/cluster.py": CLUSTER,
    }
    for name, text in (jax | files).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    code = f"import _cluster_jax, json; from jax._src.distributed import *; print(json.dumps(initialize({arguments})))"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env=env | {"PYTHONPATH": f"{tmp_path}:{CODE}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (json.loads(done.stdout), done.stderr) == (found, "")


GATHER = """
import _cluster_jax, jax, numpy, sys
jax.distributed.initialize()
from jax.experimental.multihost_utils import process_allgather
ranks = process_allgather(numpy.array([jax.process_index() + 1]))
from jax._src.xla_bridge import CUDA_VISIBLE_DEVICES as gpus
place = (jax.process_count(), jax.process_index(), jax.local_device_count(), gpus.value)
print(*place, ranks.ravel().tolist(), file=sys.stderr)  # Gloo prints to stdout
"""


@pytest.mark.slow
def test_two_processes_of_the_real_jax() -> None:
    base = next(filter(None, map(find_python, VERSIONS)), None)
    if base is None:
        pytest.skip(f"JAX needs one of Python {', '.join(VERSIONS)}")
    python = make_once(JAX.replace("==", "-"), base, partial(uv_install, (JAX,)))
    env = os.environ | {"PYTHONPATH": CODE, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    env |= {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{find_port()}", "JAX_NUM_PROCESSES": "2"}
    started = [
        subprocess.Popen([python, "-c", GATHER], env=env | {"JAX_PROCESS_ID": rank}, stderr=subprocess.PIPE, text=True)
        for rank in ("0", "1")
    ]
    try:
        for rank, process in enumerate(started):
            assert f"2 {rank} 2 all [1, 2]" in process.communicate()[1].splitlines()
    finally:
        for process in started:
            process.kill()
            process.wait()
