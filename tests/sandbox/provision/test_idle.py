"""Each kind of use on real hosts, the end of an idle cluster, and the end by the budget."""

import json
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from job_steps import Host, hosts_of, records
from node.lease.terms import parse_lease
from project import Project
from waits import until

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]

IDLE_S = 100
"""The programs look every 5 s."""
LOOK_S = 30.0  # on a busy machine, looks are late
LOOP = "setsid sh -c 'while :; do :; done' looping </dev/null >/dev/null 2>&1 &"
SERVER = (
    "setsid jupyter server --no-browser --ServerApp.ip=127.0.0.1 --ServerApp.port=8899 --IdentityProvider.token=t "
    "</dev/null >/dev/null 2>&1 &"
)
KERNEL = """
import json, sys, time, uuid
from urllib.request import Request, urlopen
import websocket
def ask(path, method="GET"):
    url = f"http://127.0.0.1:8899/api/{path}"
    return json.load(urlopen(Request(url, method=method, headers={"Authorization": "token t"})))
kernel = (ask("kernels") or [ask("kernels", "POST")])[0]
channel = websocket.create_connection(f"ws://127.0.0.1:8899/api/kernels/{kernel['id']}/channels?token=t")
content = {"code": sys.argv[1], "silent": False, "store_history": False, "user_expressions": {}, "allow_stdin": False}
header = {"msg_id": uuid.uuid4().hex, "msg_type": "execute_request", "session": uuid.uuid4().hex, "version": "5.3"}
message = {"header": {**header, "username": ""}, "parent_header": {}, "metadata": {}, "content": content}
channel.send(json.dumps({**message, "channel": "shell"}))
while json.loads(channel.recv())["msg_type"] != "execute_input":
    pass
"""


def ask(host: Host) -> dict[str, Any]:
    """The answer of a host's lease program, without a login."""
    time.sleep(0.5)  # the answers take CPU time, too
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.connect(str(host.root / "run/cluster/lease.sock"))
        peer.sendall(b'{"show": true}')
        with peer.makefile() as said:
            found: dict[str, Any] = json.loads(said.read())
    return found


def test_each_kind_of_use(project: Project) -> None:
    text = (project.directory / "cluster.toml").read_text()
    wanted = '["jupyter-server", "ipykernel", "websocket-client"]'
    text, found = re.subn(r"^# packages = .*more Python packages.*$", f"packages = {wanted}", text, flags=re.MULTILINE)
    assert found == 1
    project.write(text)
    project.run("up")
    project.run("lease", "--idle", f"{IDLE_S}s", "--yes")
    (project.directory / "kernel.py").write_text(KERNEL)
    project.run("cp", "kernel.py", "node-0:.")
    head, worker = hosts_of(project)["node-0"], hosts_of(project)["node-1"]

    def on(name: str, command: str) -> None:
        project.run("exec", "--node", name, "--", "bash", "-c", command)

    @contextmanager
    def login(name: str) -> Iterator[None]:
        """Logs in to a node until the block ends. The last look may be one at an earlier command's login."""
        with project.running("exec", "--node", name, "--", "sh", "-c", "echo here; exec sleep 1000") as process:
            assert process.stdout is not None
            assert "here" in process.stdout.readline()
            yield

    def is_in_use(why: str) -> Callable[[], bool]:
        return lambda: ask(head)["idle_s"] < 15 and why in str(ask(head)["why"])

    def is_idle(at_least_s: float = 12.0) -> bool:
        """Whether both nodes are idle, as the head reports."""
        return float(ask(head)["idle_s"]) >= at_least_s

    def look() -> list[float]:
        """The idle times that the head sees in LOOK_S seconds."""
        seen, ends_at = [], time.time() + LOOK_S
        while time.time() < ends_at:
            seen.append(float(ask(head)["idle_s"]))
            time.sleep(1)
        return seen

    # A login on the head, and one on the worker alone.
    with login("node-0"):
        until(is_in_use("is logged in"), "the login")
        assert max(look()) == 0
    until(is_idle, "the end of the login")
    with login("node-1"):
        until(is_in_use(f"the node at {worker.address} is not idle"), "the login on the worker")
        assert max(look()) < LOOK_S
    until(is_idle, "the end of the login on the worker")

    # A running job, a queued one, and one that hangs.
    for queue in ((), ("--queue",)):
        project.run("train", "--detach", *queue, "--kv-store", "local", "-n", "1", "--", "sleep", "1000")
    first, second = sorted(records(project), key=lambda job: str(job["id"]))
    assert [first["state"], second["state"]] == ["running", "queued"]
    until(is_in_use(f"job {first['id']} is running"), "the running job")
    assert max(look()) == 0
    on("node-0", "pkill -STOP -x sleep")
    until(is_in_use(f"job {first['id']} is running"), "the job that hangs")
    assert max(look()) == 0
    on("node-0", "pkill -CONT -x sleep")
    project.run("stop", first["id"])
    until(is_in_use(f"job {second['id']} is"), "the second job")

    # A job that has just ended.
    project.run("stop", second["id"])
    ended_at = max(job["ended_at"] for job in records(project))
    until(lambda: not re.search("job|logged in", str(ask(head)["why"])), "the end of the jobs")
    assert ask(head)["idle_s"] <= time.time() - ended_at + 1
    until(is_idle, "the end of the last job")

    # A loop without a login.
    on("node-1", LOOP)
    until(lambda: "the CPU is busy" in str(ask(worker)["why"]), "the loop")
    until(is_in_use(f"the node at {worker.address} is not idle"), "the loop, on the head")
    assert max(look()) < LOOK_S
    on("node-1", "pkill -f '[l]ooping'")
    until(is_idle, "the end of the loop")

    # A notebook's kernel that is idle, that computes, and that is idle again.
    on("node-0", SERVER)
    on("node-0", "for n in $(seq 60); do python kernel.py 1 2>/dev/null && exit; sleep 1; done; exit 1")
    until(is_idle, "an idle kernel is no use")
    on("node-0", "python kernel.py 'import time; time.sleep(40)'")
    until(is_in_use("a notebook kernel is busy"), "the kernel that waits without load")
    assert max(look()) == 0
    until(is_idle, "the end of the computation", timeout_s=90)

    # No use any more: the cluster ends, and not too early.
    began = time.time() - float(ask(head)["idle_s"])
    until(lambda: not hosts_of(project), "the end of the cluster", timeout_s=IDLE_S + 90)
    assert time.time() - began >= IDLE_S
    assert json.loads(project.run("status", "--json").stdout)["lease_ended"] == "its lease ended it (idle = 100s)"


def test_the_budget_ends_a_cluster(project: Project) -> None:
    """The budget counts from the launch on, although the launch had no budget."""
    project.run("up")
    node = json.loads(project.run("lease", "+1h", "--json").stdout)["nodes"][0]
    lease = parse_lease(node["lease"])
    assert lease is not None
    assert lease.usd_per_hour is not None
    usd_per_s = lease.usd_per_hour / 3600
    assert node["spent_usd"] > 5 * usd_per_s
    budget = round(node["spent_usd"] + 40 * usd_per_s, 6)
    shown = project.run("lease", "--budget", str(budget), "--yes").stdout
    assert f"at ${budget:g}" in shown
    began = time.time()
    until(lambda: not hosts_of(project), "the end of the cluster", timeout_s=120)
    assert 20 < time.time() - began < 100
    ended = json.loads(project.run("status", "--json").stdout)["lease_ended"]
    assert ended.startswith("its lease ended it (")
    assert f"budget_usd = {budget:g}" in ended
