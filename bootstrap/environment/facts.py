"""Facts about a node: its hardware and its software. One ssh command gathers them; parsing its output is pure."""

import hashlib
import re
import shlex
from collections.abc import Mapping, Sequence
from functools import cache

from msgspec import Struct, field

from bootstrap.ssh.connection import NodeConnection
from bootstrap.ssh.explain import command_error
from bootstrap.ssh.node_program import read_program
from foundation.decode import shorten
from foundation.errors import ClusterError
from foundation.remote_command import RemoteCommand
from node.setup.volumes import volume_probe
from provision.oracle.tables import GPU_MACHINES, WHEELS, Gpu, Version

TIMEOUT_S = 360  # facts.sh waits up to 300 s for a set-up that a killed command has left running
MOST_CORES = 1 << 16
OLDEST_NODE_PYTHON = (3, 6)
"""The oldest Python that runs the programs in node/."""
CUDA_LIBRARIES = tuple(sorted({name for wheel in WHEELS for name in wheel.needs} | {"libcuda.so.1"}))
"""The libraries that facts.sh looks for: all that MXNet's wheels load."""


class FoundPython(Struct, frozen=True, kw_only=True):
    """A Python that works on a node; `path` is absolute."""

    path: str
    version: Version


class FoundFramework(Struct, frozen=True, kw_only=True):
    """A framework that a Python of a node finds. name: "torch" or "mxnet".

    cuda: the CUDA that PyTorch was built with; None for a CPU build, and for MXNet. numpy: the version of that Python's
    NumPy, or "".
    """

    name: str
    version: str
    cuda: Version | None
    numpy: str
    python: FoundPython


class LibraryDir(Struct, frozen=True, kw_only=True):
    """A directory of CUDA libraries that the node's loader does not search; `names` are the names of the libraries."""

    path: str
    names: frozenset[str]


class Checked(Struct, frozen=True, kw_only=True):
    """The libraries that an environment's libmxnet.so does not find. `key` identifies the inputs of the check."""

    key: str
    unresolved: tuple[str, ...]


class NodeFacts(Struct, frozen=True, kw_only=True):
    """The facts about a node. Digests are lower-case hexadecimal SHA-256.

    python: the Python that places the runtime of our own programs: the image's python3 if it is 3.6 or later.
    pythons: every Python that was found, the image's python3 first. configured: the one at the path of [bootstrap]
    python; None if that is not a path, or no Python works at that path. frameworks: those that the Pythons find,
    including Pythons of environments, which are not in `pythons`.
    missing_libraries: system libraries that MXNet's wheels need and the system lacks.
    gpus: (compute capability such as "8.6", name) of each GPU, in the driver's order; driver: the driver's version.
    displays: "NVIDIA" for each graphics device of it, with a driver or without.
    libraries: the CUDA libraries that the loader finds. cuda_dirs: the directories of others.
    files, envs, trees, runtimes, pythons_ready, setups: the digests of what is complete in ~/.cluster.
    newest_env: the one of `envs` that `exec` and `ssh` use.
    checked: for each environment, the libraries that its libmxnet.so does not find.
    cluster_key: the public half of the head's key for the other nodes, or None.
    authorized: the lines of authorized_keys that are the cluster's own.
    system, kernel: the distribution's name, and Linux's release. has_volumes: whether our volumes are mounted.
    """

    machine: str
    glibc: tuple[int, int]
    python: str
    home: str
    cores: int = 1
    missing_libraries: tuple[str, ...] = ()
    gpus: tuple[tuple[str, str], ...] = ()
    files: frozenset[str] = frozenset()
    envs: frozenset[str] = frozenset()
    trees: frozenset[str] = frozenset()
    cluster_key: str | None = None
    known_hosts_sha256: str | None = None
    authorized: tuple[str, ...] = ()
    pythons: tuple[FoundPython, ...] = ()
    configured: FoundPython | None = None
    frameworks: tuple[FoundFramework, ...] = ()
    driver: str | None = None
    displays: tuple[str, ...] = ()
    libraries: frozenset[str] = frozenset()
    cuda_dirs: tuple[LibraryDir, ...] = ()
    runtimes: frozenset[str] = frozenset()
    pythons_ready: frozenset[str] = frozenset()
    setups: frozenset[str] = frozenset()
    newest_env: str = ""
    checked: Mapping[str, Checked] = field(default_factory=dict)
    system: str = ""
    kernel: str = ""
    has_volumes: bool = False


def gather_facts(connection: NodeConnection, *, python: str) -> NodeFacts:
    """Gathers the facts about a node; `python` is [bootstrap] python.

    Raises NodeCommandError, ConnectError, ClusterError.
    """
    script, what = RemoteCommand(render_facts_script(python)), "facts.sh"
    output = connection.run(script, check=False, timeout_s=TIMEOUT_S, what=what)
    if output.exit_code < 0 or (output.exit_code and (output.stderr.strip() or "machine=" in output.stdout)):
        raise command_error(connection.host, what, output)
    return parse_facts(output.stdout, node=connection.host.name)


@cache
def render_facts_script(python: str) -> str:
    """The text of facts.sh for [bootstrap] python. Pure, except that it reads the file."""
    script = read_program("facts.sh")
    version = hashlib.sha256(script.encode()).hexdigest()[:12]
    values = {
        "PYTHON": python if python.startswith("/") else "auto",
        "LIBRARIES": " ".join(CUDA_LIBRARIES),
        "VERSION": version,
        "NOTES": volume_probe.NOTES,
        "DISKS": volume_probe.DISKS,
    }
    for name, value in values.items():
        script = script.replace(f"__{name}__", shlex.join([value]))
    return script


def parse_facts(text: str, *, node: str) -> NodeFacts:
    """Reads the `key=value` lines of facts.sh. Pure. Raises ClusterError for invalid facts and unusable nodes."""
    try:
        return _parse_facts(text, node=node)
    except ValueError as error:  # an invalid number, an incomplete line
        raise ClusterError(
            f"{node}: cannot parse the output of facts.sh: {shorten(str(error))}",
            hint=f"cluster exec --node {node} -- sh -c 'uname -a; nproc'",
        ) from None


def _parse_facts(text: str, *, node: str) -> NodeFacts:
    several: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, _, value = line.partition("=")
        several.setdefault(key, []).append(value.strip())

    if "machine" not in several:
        raise ClusterError(
            f"{node}: its login shell ended before it ran a command",
            hint="over ssh, no file that the shell reads there (~/.bashrc, ~/.cshrc) may exit, or run another shell",
        )

    def one(key: str, default: str = "") -> str:
        return several[key][0] if key in several else default

    def digests(key: str) -> frozenset[str]:
        return frozenset(several.get(key, ()))

    pythons = tuple(_python(value) for value in several.get("python", ()))
    configured = [_python(value) for value in several.get("configured", ())]
    own = next((found for found in (*pythons, *configured) if found.version >= OLDEST_NODE_PYTHON), None)
    if own is None:
        raise ClusterError(
            f"{node}: found no working Python 3; setting up a node needs 3.6 or later",
            hint="set [bootstrap] python to the path of one, or use an image that has one ([provision] ami), or "
            f"install it: cluster ssh {node} sudo apt-get install -y python3",
        )
    known_hosts = "".join(f"{line}\n" for line in several.get("known_host", ()))
    cuda_dirs = (line.split(" ") for line in several.get("cuda", ()))
    return NodeFacts(
        machine=one("machine"),
        glibc=_version(one("glibc") or "2.17"),
        cores=_count(one("cores"), at_most=MOST_CORES),
        python=own.path,
        home=one("home"),
        missing_libraries=tuple(several.get("missing", ())),
        gpus=tuple(_gpu(line)[:2] for line in several.get("gpu", ())),
        files=digests("file"),
        envs=digests("env"),
        trees=digests("tree"),
        cluster_key=one("cluster_key") or None,
        known_hosts_sha256=hashlib.sha256(known_hosts.encode()).hexdigest() if known_hosts else None,
        authorized=tuple(several.get("authorized", ())),
        pythons=pythons,
        configured=configured[0] if configured else None,
        frameworks=tuple(dict.fromkeys(_framework(line) for line in several.get("has", ()))),
        driver=next((_gpu(line)[2] for line in several.get("gpu", ())), None),
        displays=tuple(several.get("display", ())),
        libraries=digests("library"),
        cuda_dirs=tuple(LibraryDir(path=path, names=frozenset(names)) for path, *names in cuda_dirs),
        runtimes=digests("runtime"),
        pythons_ready=digests("pythons"),
        setups=digests("setup"),
        newest_env=one("newest_env"),
        checked=_parse_checked(several.get("unresolved", ())),
        system=one("system"),
        kernel=one("kernel"),
        has_volumes="volumes" in several,
    )


def _python(line: str) -> FoundPython:
    version, _, path = line.partition(" ")
    return FoundPython(path=path, version=_version(version))


def _framework(line: str) -> FoundFramework:
    name, version, cuda, numpy, python = line.split(" ", 4)
    return FoundFramework(
        name=name,
        version=version,
        cuda=_version(cuda) if cuda != "-" else None,
        numpy=numpy if numpy != "-" else "",
        python=_python(python),
    )


def _version(text: str) -> Version:
    major, _, minor = text.partition(".")
    return _count(major), _count(minor.split(".")[0])


def _count(text: str, *, at_most: int = 9999) -> int:
    """The number in `text`. Raises ValueError for anything but a number from 0 to `at_most`."""
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= at_most):
        raise ValueError(f"{text[:40]!r} is not a number from 0 to {at_most}")
    return int(text)


def _gpu(line: str) -> tuple[str, str, str]:
    """The capability, name and driver in "8.6, 535.104.05, NVIDIA A10G". Drivers before 510 omit the capability.

    Raises ValueError.
    """
    parts = [part.strip() for part in line.split(",", 2)]
    if len(parts) != 3:
        raise ValueError(f"{line[:80]!r} is not a GPU")
    capability, driver, name = parts
    if not capability:
        capability = _find_capability(name)
    return capability, name, driver


def _find_capability(name: str) -> str:
    """The capability of a GPU, by the driver's name for it, such as "Tesla V100-SXM2-16GB"; "" if not in the table."""
    words = re.split(r"[^A-Za-z0-9]+", name)
    for machine in GPU_MACHINES:
        if machine.gpu is not None and machine.gpu.capability is not None and machine.gpu.name.split()[-1] in words:
            return ".".join(map(str, machine.gpu.capability))
    return ""


def find_gpus(facts: NodeFacts) -> list[Gpu]:
    """A node's NVIDIA GPUs, as its driver lists them. Pure."""
    found = []
    for capability, name in facts.gpus:
        major, _, minor = capability.partition(".")
        found.append(Gpu(name=name, capability=(int(major), int(minor)) if minor else None))
    return found


def _parse_checked(lines: Sequence[str]) -> dict[str, Checked]:
    """Parses lines of `ENVIRONMENT TEXT`: the first text of each is `checked KEY`, the rest name libraries."""
    found: dict[str, Checked] = {}
    for line in lines:
        env, _, message = line.partition(" ")
        if message.startswith("checked "):
            found[env] = Checked(key=message.removeprefix("checked "), unresolved=())
        elif env in found:
            found[env] = Checked(key=found[env].key, unresolved=(*found[env].unresolved, message))
    return found
