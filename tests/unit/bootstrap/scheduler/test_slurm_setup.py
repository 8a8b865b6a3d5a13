"""[bootstrap] scheduler = "slurm": what a node lacks, and the script that adds only the missing parts."""

import hashlib
import subprocess
from base64 import b64encode
from dataclasses import replace
from typing import Any

import pytest

from bootstrap.scheduler.slurm import (
    FACTS,
    SlurmFacts,
    SlurmNode,
    decode_key,
    describe_node,
    digest_of,
    parse_facts,
    plan_configuration,
    render_install,
    render_slurm_conf,
)
from foundation.errors import ClusterError

KEY = b"k" * 128
HEAD = SlurmNode(hostname="ip-10-0-0-4", address="10.0.0.4", cores=4, memory_mib=15000)
WORKER = SlurmNode(hostname="ip-10-0-0-5", address="10.0.0.5", cores=8, memory_mib=30000)
CONF = render_slurm_conf([HEAD, WORKER], cluster="demo", head=HEAD)
READY = SlurmFacts(
    missing=(),
    has_apt=True,
    hostname="ip-10-0-0-4",
    cores=4,
    memory_kib=16 << 20,
    has_cgroup_v1=False,
    running=frozenset({"munged", "slurmd", "slurmctld"}),
    key_sha256=hashlib.sha256(KEY).hexdigest(),
    applied=digest_of(CONF, KEY),
)


def plan(**more: Any) -> str:
    return plan_configuration(replace(READY, **more), conf=CONF, key=KEY, is_head=True)


def test_the_facts_of_this_machine_can_be_parsed() -> None:
    script = FACTS.replace("@PACKAGES@", "slurmd munge")
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert parse_facts(done.stdout).cores > 0


@pytest.mark.parametrize("line", ["hostname=a b", "hostname=-x", "hostname=x,y", "cores=many"])
def test_facts_of_a_damaged_node_are_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"not a host name|invalid literal"):
        parse_facts(f"{line}\ncores=1\nmemory_kib=1\n" if "host" in line else f"hostname=x\n{line}\nmemory_kib=1\n")


def test_slurm_conf_has_addresses_and_needs_no_name_server() -> None:
    lines = CONF.splitlines()
    assert "SlurmctldHost=ip-10-0-0-4(10.0.0.4)" in lines
    assert "NodeName=ip-10-0-0-5 NodeAddr=10.0.0.5 CPUs=8 RealMemory=30000 State=UNKNOWN" in lines
    assert lines[-1] == "PartitionName=cluster Nodes=ALL Default=YES MaxTime=UNLIMITED State=UP"


def test_a_node_has_a_little_less_memory_than_it_reports() -> None:
    assert describe_node(READY, address="10.0.0.4").memory_mib == int((16 << 10) * 0.95)


def test_a_node_that_lacks_nothing_gets_no_script() -> None:
    assert plan() == ""


@pytest.mark.parametrize(
    ("more", "restarts"),
    [
        ({"applied": None}, ["slurmctld", "slurmd"]),
        ({"applied": "of another configuration"}, ["slurmctld", "slurmd"]),
        ({"key_sha256": None}, ["munged", "slurmctld", "slurmd"]),
        ({"running": frozenset({"slurmd", "slurmctld"})}, ["munged", "slurmctld", "slurmd"]),
        ({"running": frozenset({"munged", "slurmd"})}, ["slurmctld", "slurmd"]),
    ],
)
def test_what_differs_is_changed(more: dict[str, Any], restarts: list[str]) -> None:
    script = plan(**more)
    found = [line.split()[1] for line in script.splitlines() if line.startswith("restart ")]
    assert found == restarts
    assert script.endswith(f"echo {digest_of(CONF, KEY)} >/etc/slurm/.cluster-applied\n")


def test_only_the_head_has_slurmctld() -> None:
    worker = replace(READY, running=frozenset({"munged", "slurmd"}))
    assert plan_configuration(worker, conf=CONF, key=KEY, is_head=False) == ""
    script = plan_configuration(replace(worker, applied=None), conf=CONF, key=KEY, is_head=False)
    assert "restart slurmctld" not in script


def test_the_key_is_not_in_the_script() -> None:
    script = plan(key_sha256=None)
    assert KEY.decode() not in script
    assert b64encode(KEY).decode() not in script


def test_a_node_with_version_1_of_cgroups_gets_its_plugin() -> None:
    assert "CgroupPlugin=cgroup/v1" in plan(applied=None, has_cgroup_v1=True)
    assert "cgroup.conf" not in plan(applied=None)


def test_scripts_are_valid_shell() -> None:
    for script in (
        plan(applied=None, has_cgroup_v1=True),
        render_install(replace(READY, missing=("munge",)), node="n"),
    ):
        subprocess.run(["sh", "-n", "-c", script], check=True)


def test_an_image_without_apt_is_refused() -> None:
    with pytest.raises(ClusterError, match=r"node-1: .* this image has no apt-get"):
        render_install(replace(READY, has_apt=False, missing=("munge",)), node="node-1")


def test_missing_packages_are_installed_without_others() -> None:
    assert "install -y --no-install-recommends slurmd munge" in render_install(
        replace(READY, missing=("slurmd", "munge")), node="node-1"
    )


def test_the_munge_key_is_read_in_base64() -> None:
    assert decode_key(b64encode(KEY).decode() + "\n", node="node-0") == KEY
    for damaged in ("", "!!", b64encode(b"short").decode()):
        with pytest.raises(ClusterError, match=r"node-0: /etc/munge/munge\.key is not a key"):
            decode_key(damaged, node="node-0")
