"""Runs a process of a job in its host's container: its command line, its mounts, its processes, and its end.

All of a job's processes on a host share one container, whose first program only keeps it running. An engine's client
runs in place of each process. The agent, the supervisor and the set-up commands stay outside.
"""

import contextlib
import json
import os
import pwd
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from node import job_folder
from node.agent.notice import place_of
from node.children import run
from node.programs import CODE_DIR
from node.protocol import Container
from node.setup import process_tree, setup_env
from node.setup.containers import engine
from node.setup.containers.engine import Mount
from node.wire import AgentOrder, RoleOrder

ENGINE_ENDS_S = 3.0  # from the end of a container's processes to the end of the engine's; less than end_processes waits
REMOVE_TIMEOUT_S = 20.0
SIGNALLED = 128  # plus the number of the signal: the exit code of a client whose container was killed
# The variables with the paths of certificate files and folders.
CERTIFICATES = ("AWS_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
SESSION = re.compile(r"/tmp/(ompi|prte|pmix)[^/]*(/|\Z)")  # noqa: S108 - Open MPI's choice
KEPT = ("HOME", "USER", "LOGNAME", "TZ")
KEEPER = ("tail", "-f", "/dev/null")  # in every image that has a shell


def base() -> dict[str, str]:
    """Returns the part of this login's environment that a process in a container gets; the image sets the rest."""
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    return {**setup_env.find_proxies(os.environ), **kept}


def find_cache(own: Mapping[str, str]) -> dict[str, str]:
    """Returns the variable with the folder of staged data: containers do not see this host's disks. Raises OSError."""
    from node.staging import cache  # noqa: PLC0415 - importing obstore takes 0.1 s

    return {"CLUSTER_DATA_CACHE_DIR": cache.find_folder(own)}


def patch_mxnet(launcher: str, container: Container, own: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that make an image's own MXNet end as our environment's does (_cluster_compat.py). Pure.

    launcher: the name of the program that starts the processes.
    """
    if container.has_environment or launcher != "launch.py" or "PYTHONPATH" in own:
        return {}
    folder = os.path.join(CODE_DIR, "node", "setup", "containers", "site")
    return {"PYTHONPATH": ":".join(filter(None, (folder, container.python_path)))}


def find_mounts(shared: AgentOrder, order: RoleOrder, container: Container, env: Mapping[str, str]) -> list[Mount]:
    """Returns the mounts of a container, as [(source, target, read only), ...]. Raises OSError.

    shared: the agent's order. env: the environment of a process. All paths are the same as outside; only the home
    folder is a separate one.
    """
    home = os.path.expanduser("~")
    own_home = os.path.join(home, engine.HOME_FOLDER)
    os.makedirs(own_home, mode=0o700, exist_ok=True)
    inside = env.get("HOME", home)
    mounts = [(own_home, inside, False), (CODE_DIR, CODE_DIR, True)]
    if container.has_environment:
        mounts += [(folder, folder, True) for folder in find_environment(order.python, home)]
    mounts += [(path, path, False) for path in (shared.cwd, env.get("CLUSTER_OUTPUT_DIR", "")) if path]
    notices = os.path.dirname(place_of(shared.spec.id, shared.attempt))
    os.makedirs(notices, mode=0o700, exist_ok=True)
    mounts += [(folder, folder, False) for folder in (notices, env["CLUSTER_DATA_CACHE_DIR"])]
    mounts += [(folder, folder, False) for folder in find_sessions(env)]
    mounts += [(env[name], env[name], True) for name in CERTIFICATES if os.path.exists(env.get(name, ""))]
    for source, target, read_only in container.mounts:
        mounts.append((expand(source, home), expand(target, inside), read_only))
    for _, target, _ in mounts:
        if target.startswith(inside + "/"):  # engines would create these folders as another user's
            os.makedirs(os.path.join(own_home, os.path.dirname(target[len(inside) + 1 :])), mode=0o700, exist_ok=True)
    return mounts


def find_sessions(env: Mapping[str, str]) -> list[str]:
    """Returns the folders of this host through which Open MPI's processes meet, such as /tmp/ompi.node-0.1000."""
    values = [value for name, value in env.items() if name.startswith(("OMPI_", "PMIX_", "PRTE_"))]
    found = {os.path.join("/", *value.split("/")[1:3]) for value in values if SESSION.match(value)}
    return sorted(folder for folder in found if os.path.isdir(folder))


def adapt_mpi(container: Container, own: Mapping[str, str]) -> dict[str, str]:
    """Adapts the variables of a process that mpirun started to a container. Pure.

    Removes the host's folders of Open MPI if the image has its own. Disables copies from one process's memory into
    another's, which are not permitted between different user namespaces.
    """
    if not any(name.startswith("OMPI_") for name in own):
        return dict(own)
    of_host = () if container.has_environment else ("OPAL_PREFIX", "PMIX_INSTALL_PREFIX", "PRTE_PREFIX")
    kept = {name: value for name, value in own.items() if name not in of_host}
    return {"OMPI_MCA_btl_vader_single_copy_mechanism": "none", **kept}


def find_environment(python: str, home: str) -> list[str]:
    """Returns the folders of the training environment: its own, and its Python's if that is also ours."""
    base = os.path.dirname(os.path.dirname(os.path.realpath(python)))
    return [
        os.path.dirname(os.path.dirname(python)),
        *([base] if base.startswith(os.path.join(home, ".cluster", "")) else []),
    ]


def expand(path: str, home: str) -> str:
    """Returns a path with ~/ as an absolute path. Pure."""
    return os.path.join(home, path[2:]) if path.startswith("~/") else path


def note_engine(job: str, words: Sequence[str]) -> None:
    """Records the engine that runs the job's containers on this host, for `remove_all`. Raises OSError."""
    path = job_folder.path(job, "engine")
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    job_folder.write_whole(path, json.dumps(list(words)).encode())


class EnginesLast:
    """For end_processes: spares the engine's programs, which need time to end after the programs in a container.

    find_inside(): returns the processes in containers, which may be engines, too.
    """

    def __init__(self, find_inside: Callable[[], Sequence[process_tree.Process]] = lambda: ()) -> None:
        self._find_inside = find_inside
        self._alone_since: float | None = None  # since when only the engine's own programs are left

    def __call__(self, found: Sequence[process_tree.Process]) -> Sequence[process_tree.Process]:
        """Returns the processes that are not signalled yet."""
        inside = set(self._find_inside())
        engines = [one for one in found if one not in inside and process_tree.is_engine_program(one[2])]
        if len(engines) < len(found):
            self._alone_since = None
            return engines
        self._alone_since = self._alone_since or time.monotonic()
        return engines if time.monotonic() < self._alone_since + ENGINE_ENDS_S else ()


async def start_container(job: str, container: Container, name: str, mounts: Sequence[Mount]) -> str | None:
    """Makes a container, and starts it. Returns why it does not run, or None. Raises OSError."""
    note_engine(job, container.engine)
    own, user = {process_tree.JOB_VARIABLE: job}, (os.getuid(), os.getgid())
    words, passed = engine.run_words(
        container, KEEPER, own, name=name, user=user, job=job, mounts=mounts, detached=True
    )
    env = {**passed, **engine.environment(os.environ)}
    ended = await run(words, None, env=env, start_new_session=True, preexec_fn=process_tree.die_with_parent)
    if ended.code == 0:
        return None
    last = (ended.stderr or ended.stdout).decode("utf-8", "replace").strip().rpartition("\n")[2]
    return f"{os.path.basename(container.engine[-1])} could not start the job's container: {last}"


class Contained:
    """One command of a process in the container `name`. label: distinguishes it from other commands there."""

    def __init__(self, order: RoleOrder, container: Container, name: str, label: str) -> None:
        self._order, self._container, self._place = order, container, name
        self.name = f"{name}-{label}"
        self.spare = EnginesLast(self.find_inside)
        self._was_seen = False

    def start(self, command: Sequence[str], env: Mapping[str, str], mark: str) -> "subprocess.Popen[bytes]":
        """Starts the engine's client. mark: the name of a variable that the engine's own processes get, too.

        Raises OSError.
        """
        words, passed = engine.exec_words(
            self._container.engine,
            self._place,
            command,
            env,
            name=self.name,
            user=(os.getuid(), os.getgid()),
            cwd=self._order.folder,
        )
        own = {name: env[name] for name in (mark, process_tree.JOB_VARIABLE)}
        return process_tree.start(words, {**passed, **engine.environment(os.environ), **own}, "/")

    # -- its processes -------------------------------------------------------------------------------------------

    def find_inside(self) -> list[process_tree.Process]:
        """Returns the command's processes in the container: the program and its descendants."""
        found = process_tree.find(self.name, engine.CONTAINER_VARIABLE)
        self._was_seen = self._was_seen or bool(found)
        return found

    def find_program(self) -> int | None:
        """Returns the pid of the program; None until it exists."""
        inside = self.find_inside()
        return min(inside, key=lambda one: (one[1], one[0]))[0] if inside else None  # which was started first

    # -- its end -------------------------------------------------------------------------------------------------

    def read_code(self, code: int) -> tuple[int, int | None, str | None]:
        """Returns (exit code, signal or None, message or None) for the client's exit code; negative: a signal."""
        name = os.path.basename(self._container.engine[-1])
        if code < 0:
            return SIGNALLED - code, -code, f"{name}, which runs its container, was killed"
        ended_by = code - SIGNALLED
        if ended_by in {one.value for one in signal.Signals}:
            return code, ended_by, None
        return code, None, None if self._was_seen or code != 125 else f"{name} could not start it in its container"


async def remove_all(job: str) -> list[tuple[int, str]]:
    """Removes a job's containers on this host, running or not. Returns those that remain, as (0, description)."""
    words, options = find_engine(job)
    if not words:  # the job had no containers here
        return []

    async def ask(question: Sequence[str]) -> str | None:
        """Returns the engine's output, or None if it fails."""
        with contextlib.suppress(OSError):
            ended = await run(question, REMOVE_TIMEOUT_S, **options)
            if ended.code == 0:
                return ended.stdout.decode("utf-8", "replace")
        return None

    left = await ask(engine.list_words(words, job))
    if left and left.split():
        await ask(engine.remove_words(words, left.split()))
        left = await ask(engine.list_words(words, job))
    if left is None:
        return [(0, f"{words[-1]} does not say whether containers of the job remain")]
    return [(0, f"container {name}") for name in left.split()]


def find_engine(job: str) -> tuple[list[str], dict[str, Any]]:
    """Returns the command line of the engine of a job's containers on this host, and the options to run it.

    As root under sudo, it runs as the user who called sudo, because each user has separate containers.
    """
    env: dict[str, str] = dict(os.environ)
    options: dict[str, Any] = {}
    if os.getuid() == 0 and os.environ.get("SUDO_USER"):
        user = pwd.getpwnam(os.environ["SUDO_USER"])
        env |= {"HOME": user.pw_dir, "USER": user.pw_name, "LOGNAME": user.pw_name}
        runtime = f"/run/user/{user.pw_uid}"
        env.pop("XDG_RUNTIME_DIR", None)
        if os.path.isdir(runtime):
            env["XDG_RUNTIME_DIR"] = runtime
        groups = os.getgrouplist(user.pw_name, user.pw_gid)
        options = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": groups}
    try:
        with open(
            os.path.join(env.get("HOME") or os.path.expanduser("~"), ".cluster", "jobs", job, "engine")
        ) as stream:
            words = [str(word) for word in json.load(stream)]
    except (OSError, ValueError):
        words = []
    return words, {"env": engine.environment(env), **options}
