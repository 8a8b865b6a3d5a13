"""What each engine starts, and where: as launch.py and Open MPI do it."""

from collections import Counter
from typing import get_args

import pytest

from job_channels import make_order
from train.engines import ENGINES
from train.engines.engine import HostFiles
from train.job.protocol import JobHost, Launcher

FILES = HostFiles(hostfile="/jobs/j/hosts", mpi_ssh="/jobs/j/bin/mpi-ssh")
ROLE = ("python", "-Es", "/c/train/node", "role", "launched")


def test_every_launcher_has_an_engine() -> None:
    assert set(ENGINES) == set(get_args(Launcher))
    assert all(ENGINES[name].name == name for name in ENGINES)


@pytest.mark.parametrize(
    ("launcher", "hosts", "workers", "servers", "placed"),
    [
        ("ssh", "ab", 2, 2, {"server a": 1, "server b": 1, "worker a": 1, "worker b": 1}),
        ("ssh", "ab", 2, 1, {"server a": 1, "worker b": 1, "worker a": 1}),
        ("ssh", "aab", 3, 1, {"server a": 1, "worker a": 2, "worker b": 1}),
        ("ssh", "b", 1, 0, {"worker b": 1}),
        ("local", "b", 2, 1, {"server a": 1, "worker a": 2}),
        ("mpi", "ab", 2, 1, {"server a": 1, "worker a": 1, "worker b": 1}),
        ("mpi", "aab", 2, 0, {"worker a": 1, "worker b": 1}),
    ],
)
def test_processes_are_placed_on_the_hosts(
    launcher: str, hosts: str, workers: int, servers: int, placed: dict[str, int]
) -> None:
    found = ENGINES[launcher].place(list(hosts), head="a", workers=workers, servers=servers)
    assert Counter({f"{role} {host}": count for (role, host), count in found.items()}) == Counter(placed)


@pytest.mark.parametrize(
    ("launcher", "p3", "options"),
    [
        ("ssh", True, ["--launcher", "ssh", "-H", FILES.hostfile, "--p3"]),
        ("local", False, ["--launcher", "local"]),
        ("mpi", True, ["--launcher", "mpi", "-H", FILES.hostfile]),  # --p3 would be the name of the program there
    ],
)
def test_launch_py_gets_its_options(launcher: Launcher, options: list[str], *, p3: bool) -> None:
    hosts = (JobHost(name="node-0", ip="10.0.0.4"),)
    launch = ENGINES[launcher].plan_launch(make_order(hosts=hosts, workers=3, servers=2, p3=p3), FILES, ROLE)
    assert (launch.program, launch.is_launcher) == ("launch", True)
    assert list(launch.arguments) == ["10.0.0.4", "-n", "3", "-s", "2", *options, *ROLE]
    assert ("OMPI_MCA_plm_rsh_agent" in launch.env) == (launcher == "mpi")


@pytest.mark.parametrize(
    ("hostfile", "host"), [(("10.0.0.5:2222",), "10.0.0.5"), ((), "10.0.0.4")], ids=["hostfile", "head"]
)
def test_one_worker_without_servers_needs_no_launcher(hostfile: tuple[str, ...], host: str) -> None:
    order = make_order(hosts=(JobHost(name="node-0", ip="10.0.0.4"),), hostfile=hostfile)
    launch = ENGINES["ssh"].plan_launch(order, FILES, ROLE)
    assert (launch.program, launch.arguments, launch.is_launcher) == ("ssh_proxy", ("--role", "worker", host), False)
