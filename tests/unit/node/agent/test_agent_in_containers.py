"""The agent with a container engine: the content of a container, how it ends, and that the engine then lists none."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from node.protocol import Container
from node.setup.process_tree import start_time
from node.wire import Exited, Started
from node_agent import NodeAgent, end_from_outside, home, run_agent

__all__ = ["home"]

# A podman without images: a client, a conmon that watches the container's program, and that program. Each container
# is a file in $HOME/containers, by name, and so is each session of `exec`. The client records its arguments and
# environment in $HOME/calls.
CLIENT = r"""
import json, os, signal, subprocess, sys, time
home = os.environ["HOME"]
place = os.path.join(home, "containers")
os.makedirs(place, exist_ok=True)
verb, words = sys.argv[1], sys.argv[2:]
with open(os.path.join(home, "calls"), "a") as stream:
    stream.write(json.dumps({"words": sys.argv[1:], "env": dict(os.environ)}) + "\n")

def names():
    return sorted(name for name in os.listdir(place) if "." not in name)

def read(name):
    with open(os.path.join(place, name)) as stream:
        return json.load(stream)

if verb == "ps":
    wanted = words[words.index("--filter") + 1].partition("=")[2]
    print("\n".join(name for name in names() if read(name)["label"] == wanted))
elif verb == "rm":
    for name in [word for word in words if word in names()]:
        try:
            os.kill(read(name)["pid"], signal.SIGKILL)
        except (KeyError, ProcessLookupError):
            pass
        os.unlink(os.path.join(place, name))
elif verb in ("run", "exec"):
    env, options, at = {}, {}, 0
    flags = ("--rm", "--detach")
    while words[at].startswith("--"):
        if words[at] in flags:
            at += 1
            continue
        if words[at] == "--env":
            name, equals, value = words[at + 1].partition("=")
            env[name] = value if equals else os.environ[name]
        options[words[at]] = words[at + 1]
        at += 2
    if os.environ.get("PODMAN_FAILS") == verb:
        sys.stderr.write("Error: it does not start\n")
        sys.exit(125)
    state = {"cwd": options["--workdir"], "env": env, "command": words[at + 1:]}
    if verb == "run":
        name = options["--name"]
        state["label"] = options["--label"]
    else:
        name = words[at] + "." + env["CLUSTER_CONTAINER"]  # a session of the container
        state["env"] = {**read(words[at])["env"], **env}
    with open(os.path.join(place, name), "w") as stream:
        json.dump(state, stream)
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        if verb == "run":
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, 1)
            os.dup2(null, 2)
        os.execv(PYTHON, ["conmon", "-c", CONMON, place, name])
    os.wait()
    if verb == "run":
        while "pid" not in read(name):
            time.sleep(0.02)
        sys.exit(0)
    status = os.path.join(place, name + ".status")
    while not os.path.exists(status):
        time.sleep(0.02)
    with open(status) as stream:
        code = int(stream.read())
    os.unlink(status)
    os.unlink(os.path.join(place, name))
    sys.exit(code)
"""
CONMON = r"""
import json, os, subprocess, sys
place, name = sys.argv[1:]
path = os.path.join(place, name)
with open(path) as stream:
    state = json.load(stream)
child = subprocess.Popen(state["command"], env=state["env"], cwd=state["cwd"], stdin=subprocess.DEVNULL)
with open(path + ".new", "w") as stream:
    json.dump({**state, "pid": child.pid}, stream)
os.rename(path + ".new", path)
code = child.wait()
with open(path + ".new", "w") as stream:
    stream.write(str(code if code >= 0 else 128 - code))
os.rename(path + ".new", path + ".status")
"""


@pytest.fixture(autouse=True)
def _podman(home: Path) -> None:
    folder = home / "engine"
    folder.mkdir()
    script = folder / "client.py"
    script.write_text(f"PYTHON, CONMON = {sys.executable!r}, {CONMON!r}\n{CLIENT}")
    path = folder / "podman"
    path.write_text(
        f'#!/bin/bash\nexport PYTHONHOME={sys.base_prefix}\nexec -a podman {sys.executable} {script} "$@"\n'
    )
    path.chmod(0o755)


@contextmanager
def contained(home: Path, *words: str, job: str | None = None, **more: Any) -> Iterator[NodeAgent]:
    """Runs an agent with a process in a container. more: fields of the container."""
    fields = {"engine": (f"{home}/engine/podman",), "image": "sha256:ab", "path": "/usr/bin:/bin", **more}
    with run_agent(job=job) as agent:
        agent.start(*words, env={"SECRET_OF_JOB": "canary-1"}, container=Container(**fields), python=sys.executable)
        yield agent
    assert containers(home) == []


def containers(home: Path) -> list[str]:
    folder = home / "containers"
    return sorted(path.name for path in folder.iterdir() if not path.suffix) if folder.exists() else []


def calls(home: Path, verb: str) -> list[dict[str, Any]]:
    found = map(json.loads, (home / "calls").read_text().splitlines())
    return [call for call in found if call["words"][0] == verb]


def test_programs_in_the_container_of_a_node(home: Path) -> None:
    with contained(home, "sh", "-c", 'echo "$SECRET_OF_JOB"; echo $$; sleep 1; exit 5') as agent:
        assert agent.read_until(Exited).exit_code == 5
        container = Container(engine=(f"{home}/engine/podman",), image="sha256:ab", path="/usr/bin:/bin")
        agent.start("sh", "-c", "kill -9 $$", p=1, container=container, python=sys.executable)
        assert agent.read_until(Exited) == Exited(p=1, exit_code=137, signal=9)
    assert agent.lines()[0] == "canary-1"
    pid = int(agent.lines()[1])
    assert Started(0, pid) in agent.messages  # that of the program, not of the engine's client
    assert len(calls(home, "run")) == 1
    call, _ = calls(home, "exec")
    assert "canary-1" not in " ".join(call["words"])
    assert "PATH" not in {word.partition("=")[0] for word in call["words"]}  # the image's own PATH is used


def test_an_engine_that_cannot_start_it(home: Path) -> None:
    script = home / "engine" / "client.py"
    script.write_text(script.read_text().replace('os.environ.get("PODMAN_FAILS")', '"run"'))
    with contained(home, "true") as agent:
        exited = agent.read_until(Exited)
    assert (exited.exit_code, exited.why) == (
        125,
        "podman could not start the job's container: Error: it does not start",
    )


def test_agent_end_removes_what_a_killed_agent_has_left(home: Path) -> None:
    with contained(home, "sleep", "1000") as agent:
        pid = agent.read_until(Started).pid
        agent.process.kill()
        agent.process.wait()
        assert end_from_outside(agent.job) == []
        assert start_time(pid) is None
