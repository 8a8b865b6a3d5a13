"""A fake podman without images: a client, a conmon that watches the container's program, and that program.

Each container is a file in $HOME/containers, by name, and so is each session of `exec`. The client records its
arguments and environment in $HOME/calls.
"""

import sys
from pathlib import Path

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


def make_podman(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "client.py"
    script.write_text(f"PYTHON, CONMON = {sys.executable!r}, {CONMON!r}\n{CLIENT}")
    path = folder / "podman"
    path.write_text(
        f'#!/bin/bash\nexport PYTHONHOME={sys.base_prefix}\nexec -a podman {sys.executable} {script} "$@"\n'
    )
    path.chmod(0o755)
    return path
