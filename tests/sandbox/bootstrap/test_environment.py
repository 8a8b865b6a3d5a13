"""Set-up commands, Pythons and CUDA libraries, on real hosts with the real commands."""

import re
from collections.abc import Iterator

import pytest

from project import Project, shipped

pytestmark = pytest.mark.sandbox


def ask(project: Project, command: str) -> str:
    """The output of a shell command on the head."""
    return project.run("exec", "--node", "node-0", "--", "sh", "-c", command).stdout.removeprefix("[node-0] ")


@pytest.fixture
def nodes(two_nodes: Project) -> Iterator[Project]:
    """The shared cluster, without the test's settings afterwards."""
    before = (two_nodes.directory / "cluster.toml").read_text()
    try:
        yield two_nodes
    finally:
        two_nodes.write(before)


def set_up(project: Project, *commands: str) -> None:
    """Writes the shared cluster's cluster.toml with these set-up commands."""
    project.write(shipped(idle="1d", bootstrap__setup=commands))


def test_a_failing_set_up_command_is_repaired_and_the_others_run_once(nodes: Project) -> None:
    set_up(nodes, "echo the first", "echo what it said; sh -c 'exit 7'", "touch ~/never")
    output = nodes.run("up", code=1).stderr
    assert re.search(r"node-0: exit code 7 from: ", output)
    assert "  | what it said" in output
    assert "setup command 2 of 3 ended with exit code 7: echo what it said; sh -c 'exit 7'" in output
    count = "echo run >>$HOME/'it''s $(odd)'"
    set_up(nodes, count, "sudo touch /opt/by-sudo", "test ! -e ~/never")
    nodes.run("up")
    assert "nothing to do" in nodes.run("up").stderr
    assert ask(nodes, "cat ~/it*odd*; ls /opt/by-sudo").split() == ["run", "[node-0]", "/opt/by-sudo"]
    set_up(nodes, count)
    nodes.run("up")
    assert ask(nodes, "cat ~/it*odd* | wc -l").strip() == "2"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_cuda_11_2_comes_from_pypi_without_the_driver(project: Project) -> None:
    """The real wheel and its nvidia-* wheels, 2.4 GB in all."""
    project.write(shipped(provision__nodes=1, instance_type="g5.xlarge", mxnet="mxnet-cu112==1.9.1"))
    project.run("up", "--yes", timeout_s=1200)
    checked, *missing = ask(project, "cat .cluster/env/*/.unresolved").splitlines()
    assert checked.startswith("checked ")
    assert missing == ["[node-0] libcuda.so.1"]
    output = ask(project, ".cluster/env/*/bin/python -c 'import mxnet' 2>&1 | tail -n 1")
    assert "libcuda.so.1: cannot open shared object file" in output
