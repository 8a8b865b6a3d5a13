"""The processes that each engine starts, and their hosts, compared with launch.py, Open MPI and torchrun."""

from collections.abc import Mapping
from typing import Any

import pytest

from job_channels import make_order
from node.engines import ENGINES
from node.engines.engine import Head, HeadLaunch, HostLaunch, NewProcess, Rendezvous
from node.protocol import JobHost

HEAD = Head("/jobs/j/hosts", mpi_ssh="/jobs/j/bin/mpi-ssh", role_words=("python", "role", "launched"), port=29500)
HOSTS = tuple(JobHost(name=f"node-{index}", ip=f"10.0.0.{4 + index}") for index in range(3))
LINES = ("node-0", "node-1", "node-1")
TORCHRUN = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.4", "MASTER_PORT": "29500"}
PS_LITE = {"DMLC_PS_ROOT_URI": "10.0.0.4", "DMLC_PS_ROOT_PORT": "9091"}


@pytest.mark.parametrize(("servers", "policy", "slots"), [(0, "slot", (1, 2)), (2, "node", (1, 1))])
def test_mpirun_places_processes_as_planned(servers: int, policy: str, slots: tuple[int, int]) -> None:
    """Measured with Open MPI 4.1.8, which takes a host's cores for its slots if a hostfile names it only once."""
    order = make_order(launcher="mpi", hosts=HOSTS[:2], lines=LINES, workers=3, servers=servers)
    (launch,) = ENGINES["mpi"].plan_launches(order, HEAD)
    assert isinstance(launch, HeadLaunch)
    assert launch.env["OMPI_MCA_rmaps_base_mapping_policy"] == policy
    lines = tuple(f"10.0.0.{4 + index} slots={count}" for index, count in enumerate(slots))
    assert ENGINES["mpi"].render_hostfile(order) == lines


def order_of_three(launcher: str) -> Any:
    """An order for one process on node-1, which comes first, and two on node-2. The head, node-0, has none."""
    lines = ("node-1", "node-2", "node-2")
    return make_order(launcher=launcher, hosts=HOSTS, lines=lines, workers=3, kv_store="none")


def test_without_a_launcher_each_process_knows_its_rank() -> None:
    launches = ENGINES["env"].plan_launches(order_of_three("env"), HEAD)
    world = {"WORLD_SIZE": "3", "MASTER_ADDR": "10.0.0.5", "MASTER_PORT": "29500"}
    first = {"LOCAL_WORLD_SIZE": "1", "GROUP_RANK": "0", **world}
    second = {"LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1", **world}
    assert launches == (
        HostLaunch("worker", "10.0.0.5", {"RANK": "0", "LOCAL_RANK": "0", **first}),
        HostLaunch("worker", "10.0.0.6", {"RANK": "1", "LOCAL_RANK": "0", **second}),
        HostLaunch("worker", "10.0.0.6", {"RANK": "2", "LOCAL_RANK": "1", **second}),
    )


def test_libraries_find_their_place_without_a_launcher() -> None:
    """Lightning and JAX; a variable that the user sets stays. torchrun's processes get only torchrun's."""
    launched = {**TORCHRUN, "GROUP_RANK": "1"}
    made = environment("env", launched)
    jax = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
    assert [made[name] for name in (*jax, "NODE_RANK")] == ["10.0.0.4:29500", "4", "3", "1"]
    assert "NODE_RANK" not in environment("env", launched, NODE_RANK="7")
    assert "NODE_RANK" not in environment("torchrun", launched)


@pytest.mark.parametrize(
    ("launcher", "launched", "rank"),
    [
        ("torchrun", TORCHRUN, 3),
        ("mpi", {"OMPI_COMM_WORLD_RANK": "2"}, 2),
        ("mpi", {"CLUSTER_RANK": "0"}, 0),  # one worker, which needs no mpirun
        ("mpi", {"OMPI_COMM_WORLD_RANK": "2", "DMLC_ROLE": "worker"}, None),  # ps-lite assigns a rank of its own
        ("ssh", {"DMLC_ROLE": "worker"}, None),
        ("ssh", {"CLUSTER_RANK": "0"}, 0),
    ],
)
def test_ranks_that_variables_tell(launcher: str, launched: dict[str, str], rank: int | None) -> None:
    assert ENGINES[launcher].find_rank(launched) == rank


@pytest.mark.parametrize(
    ("launcher", "role", "launched", "place"),
    [
        ("env", "worker", TORCHRUN, Rendezvous("the node of rank 0:", "10.0.0.4", 29999)),  # not the program's port
        ("env", "worker", TORCHRUN | {"RANK": "0"}, None),
        ("torchrun", "launcher", TORCHRUN | {"GROUP_RANK": "1"}, Rendezvous("the node of rank 0:", "10.0.0.4", 29999)),
        ("torchrun", "launcher", TORCHRUN | {"GROUP_RANK": "0"}, None),
        ("ssh", "server", PS_LITE, Rendezvous("the scheduler's", "10.0.0.4", 9091)),
        ("ssh", "scheduler", PS_LITE, None),
        ("ssh", "worker", {}, None),
    ],
)
def test_what_a_process_must_reach(
    launcher: str, role: str, launched: dict[str, str], place: Rendezvous | None
) -> None:
    assert ENGINES[launcher].find_rendezvous(role, launched) == place


def environment(launcher: str, launched: Mapping[str, str], role: str = "worker", **own: str) -> dict[str, str]:
    return ENGINES[launcher].environment(NewProcess(role, launched, own, "10.0.0.5", "ens5"))


@pytest.mark.parametrize(
    ("launched", "prefix"),
    [
        ({"PMIX_INSTALL_PREFIX": "/e"}, "/e"),
        ({"PMIX_INSTALL_PREFIX": "/e", "OPAL_PREFIX": "/f"}, "/f"),
        ({"OMPI_COMM_WORLD_RANK": "0"}, None),
    ],
)
def test_open_mpi_of_a_wheel_finds_its_files(launched: dict[str, str], prefix: str | None) -> None:
    assert environment("mpi", launched).get("OPAL_PREFIX") == prefix


def test_pytorch_gets_the_interface_in_the_syntax_of_each_library() -> None:
    made = environment("torchrun", TORCHRUN)
    assert made.items() >= TORCHRUN.items()
    assert (made["GLOO_SOCKET_IFNAME"], made["NCCL_SOCKET_IFNAME"]) == ("ens5", "=ens5")
    ours = ("CLUSTER_RANK", "CLUSTER_WORLD_SIZE", "CLUSTER_LOCAL_RANK", "CLUSTER_INIT_METHOD")
    assert [made[name] for name in ours] == ["3", "4", "1", "tcp://10.0.0.4:29500"]
    assert "GLOO_SOCKET_IFNAME" not in environment("torchrun", TORCHRUN, GLOO_SOCKET_IFNAME="mine")
    assert set(environment("torchrun", TORCHRUN, role="launcher")) == {"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"}
