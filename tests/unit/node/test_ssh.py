"""ssh from the head to a host that is no node of the cluster; test_existing_hosts.py has real ones, at port 22."""

from foundation.remote_command import RemoteCommand
from node.protocol import HostSettings, JobHost
from node.ssh import ssh_command


def test_an_own_hosts_user_and_port() -> None:
    settings = HostSettings(user="alice", port=2222, python="python", code_dir="/c", cwd="/", command=())
    words = ssh_command(JobHost(name="lab", ip="10.9.0.1", own_host=settings), RemoteCommand("id"))
    assert words[-2] == "alice@10.9.0.1"
    assert words[words.index("-p") + 1] == "2222"
