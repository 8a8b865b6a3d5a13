"""The command lines of docker and podman. Pure.

A container shares the node's network and processes, and its /dev/shm if no other size is set. So a job's processes
reach each other, share GPU memory, and are found and signalled as without a container. They have the node user's id:
the files that they write belong to that user, and they are not root on the node.
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence

from node.job_folder import SECRET
from node.protocol import Container

DOCKER, PODMAN = "docker", "podman"
Mount = tuple[str, str, bool]
"""The source, the target and whether it is read-only."""
DOCKER_AS_ROOT = ["sudo", "-n", "-E", DOCKER]  # -E: it reads variables that are given by name from its environment
JOB_LABEL = "cluster.job"
CONTAINER_VARIABLE = "CLUSTER_CONTAINER"
"""A variable in the environment of every process in a container; it has the container's name."""
HOME_FOLDER = os.path.join(".cluster", "home")
"""The home folder of processes in containers, below the node user's, because they must not see the user's keys."""
PYTHONS_FOLDER = os.path.join(".cluster", "python")
"""The folder of the Pythons that environments use instead of the system's, below the home folder."""
MOUNT_FOLDERS = ("data", "env", "jobs", "tree")
"""The folders of ~/.cluster whose folders and files are mounted in containers."""
SEARCH_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
AUTH_FILE = "REGISTRY_AUTH_FILE"  # podman does not run without the file that it names
# Variables that change how the engine itself works. The engine gets the node's values; the container's values are words
# of the command line. All other variables, and those that are named like secrets, such as LD_SDK_KEY, go through the
# environment.
_OF_ENGINE = re.compile(
    "PATH|HOME|USER|LOGNAME|SHELL|TMPDIR|TZ|SUDO_(USER|UID|GID|COMMAND)|LD_[A-Z_]+|XDG_[A-Z_]+|SSL_CERT_(FILE|DIR)|"
    "DOCKER_(HOST|CONFIG|CONTEXT|CERT_PATH|TLS|TLS_VERIFY|API_VERSION|DEFAULT_PLATFORM|CONTENT_TRUST|BUILDKIT)|"
    "CONTAINER_(HOST|CONNECTION|SSHKEY|PROXY)|CONTAINERS_[A-Z_]+|_CONTAINERS_[A-Z_]+|PODMAN_(USERNS|CONNECTIONS_CONF)|"
    "STORAGE_(DRIVER|OPTS)|REGISTR(Y_AUTH_FILE|IES_CONFIG_PATH)|BUILDAH_[A-Z_]+|DBUS_SESSION_BUS_ADDRESS|"
    "GO(DEBUG|GC|MAXPROCS|MEMLIMIT|TRACEBACK)|NOTIFY_SOCKET|LISTEN_(FDS|PID|FDNAMES)"
)
# Those that `sudo -E` removes (`sudo -V` lists them) are words of its command line, too.
_OF_SUDO = re.compile(
    "PYTHON(HOME|INSPECT|PATH|USERBASE)|PERL(5DB|5LIB|5OPT|IO_DEBUG|LIB)|RUBY(LIB|OPT)|JAVA_TOOL_OPTIONS|ENV|BASH_ENV|"
    "BASHOPTS|SHELLOPTS|GLOBIGNORE|IFS|PS4|CDPATH|FPATH|ZDOTDIR|TMPPREFIX|(READ)?NULLCMD|TERM(CAP|PATH|INFO|INFO_DIRS)|"
    "LOCALDOMAIN|RES_OPTIONS|HOSTALIASES|NLSPATH|PATH_LOCALE"
)


def is_podman(engine: Sequence[str]) -> bool:
    """Whether an engine is podman. engine: the first words of its commands."""
    return os.path.basename(engine[-1]) == PODMAN


def environment(base: Mapping[str, str]) -> dict[str, str]:
    """The environment of the engine's own commands on this node, from this process's environment."""
    kept = ("HOME", "USER", "LOGNAME", "SHELL", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS", "DOCKER_HOST", "LANG")
    env = {name: base[name] for name in kept if name in base}
    env["PATH"] = SEARCH_PATH
    return env


def run_words(
    container: Container,
    command: Sequence[str],
    env: Mapping[str, str],
    *,
    name: str,
    user: tuple[int, int],
    job: str = "check",
    mounts: Iterable[Mount] = (),
    detached: bool = False,
) -> tuple[list[str], dict[str, str]]:
    """The command line for a new container, and the variables to add to the engine's own environment.

    env: the environment of the process. name: of the container. user: the ids of the node's user and of its group.
    mounts: with absolute paths, in place of the container's own. detached: the engine returns once the command has
    started. Values are not on the command line, where all users of the node see them, except for variables that the
    engine itself would obey, such as PATH and HOME.
    """
    engine, (uid, gid) = container.engine, user
    words = [*engine, "run", "--rm", "--name", name, "--network", "host", "--pid", "host"]
    words += ["--label", f"{JOB_LABEL}={job}"]
    words += ["--detach"] if detached else ["--sig-proxy=false"]
    words += ["--log-driver", "none"]
    if container.shm_size is None:
        words += ["--ipc", "host"]
    else:
        words += ["--shm-size", f"{container.shm_size}b"]
    # Without it, the USER of the image would decide whose files these processes can read, and leave behind.
    words += ["--user", f"{uid}:{gid}"]
    if is_podman(engine):
        words += ["--userns", "keep-id"] if uid else []
        words += ["--ulimit", "host", "--pull", "never"]
        words += ["--device", "nvidia.com/gpu=all"] if container.gpus else []
    else:
        words += ["--ulimit", "memlock=-1"]
        words += ["--gpus", "all"] if container.gpus else []
    words += ["--security-opt", "label=disable"]
    words += ["--entrypoint", "", "--workdir", "/"]
    for source, target, read_only in sort_mounts(mounts):
        words += ["--volume", f"{source}:{target}{':ro' if read_only else ''}"]
    words += ["--env", f"{CONTAINER_VARIABLE}={name}"]
    given, passed = _pass_on(engine, env)
    return [*words, *given, container.image, *command], passed


def exec_words(
    engine: Sequence[str],
    container: str,
    command: Sequence[str],
    env: Mapping[str, str],
    *,
    name: str,
    user: tuple[int, int],
    cwd: str,
) -> tuple[list[str], dict[str, str]]:
    """The command line for a process in a container that runs, and the variables as in `run_words`.

    container: its name. name: that of the process.
    """
    words = [*engine, "exec", "--user", "{}:{}".format(*user), "--workdir", cwd]
    words += ["--env", f"{CONTAINER_VARIABLE}={name}"]
    given, passed = _pass_on(engine, env)
    return [*words, *given, container, *command], passed


def _pass_on(engine: Sequence[str], env: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """The options for the variables of a process, and those of them that the engine takes from its own environment."""
    words: list[str] = []
    passed: dict[str, str] = {}
    for name in sorted(env):
        is_secret = SECRET.search(name) is not None and name != AUTH_FILE
        is_removed = engine[0] == DOCKER_AS_ROOT[0] and _OF_SUDO.fullmatch(name)
        if (_OF_ENGINE.fullmatch(name) or is_removed) and not is_secret:
            words += ["--env", f"{name}={env[name]}"]
        else:
            words += ["--env", name]
            passed[name] = env[name]
    return words, passed


def sort_mounts(mounts: Iterable[Mount]) -> list[Mount]:
    """Sorts mounts so that a folder comes before those inside it. Of several with the same target, the last counts."""
    by_target = {target: (source, target, read_only) for source, target, read_only in mounts}
    return [by_target[target] for target in sorted(by_target)]


def create_words(engine: Sequence[str], image: str, name: str) -> list[str]:
    """The command line of podman that creates a container without starting it, with the same ids as `run_words`."""
    words = [*engine, "create", "--name", name, "--label", f"{JOB_LABEL}=none", "--pull", "never"]
    return [*words, "--userns", "keep-id", "--entrypoint", "", image, "true"]


def remove_words(engine: Sequence[str], names: Iterable[str]) -> list[str]:
    """The command line that kills and removes containers by name or id. Containers that are gone are not an error."""
    words = ["--ignore"] if is_podman(engine) else []  # Ubuntu 22.04's podman 3.4 has no --time
    return [*engine, "rm", "--force", "--volumes", *words, *names]


def list_words(engine: Sequence[str], job: str) -> list[str]:
    """The command line that prints the names of a job's containers, including those that have ended."""
    return [*engine, "ps", "--all", "--filter", f"label={JOB_LABEL}={job}", "--format", "{{.Names}}"]


def pull_words(engine: Sequence[str], reference: str, credentials: str | None) -> list[str]:
    """The command line that pulls an image. credentials: the path of the file that has them, or None."""
    if credentials is None:
        return [*engine, "pull", "--quiet", reference]
    if is_podman(engine):
        return [*engine, "pull", "--quiet", "--authfile", credentials, reference]
    return [*engine, "--config", os.path.dirname(credentials), "pull", "--quiet", reference]
