"""What a node is and what it has already: one ssh command, then pure parsing."""

from dataclasses import dataclass
from importlib.resources import files

from bootstrap.connection import NodeConnection, quote_command
from provision.errors import ClusterError

TIMEOUT_S = 360  # facts.sh itself waits 300 s at most, for a set-up that a killed command has left running
LIST_KEYS = ("missing", "gpu", "file", "env", "tree", "authorized")


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeFacts:
    """A node, looked at. Digests are lower-case hexadecimal SHA-256.

    missing_libraries: of those that MXNet's wheels take from the system, what the system does not have.
    gpus: (compute capability such as "8.6", name) of each GPU, in the driver's order.
    files, envs, trees: digests of what is complete in ~/.cluster there.
    cluster_key: the public half of the head's key for the other nodes, or None.
    authorized: the lines of authorized_keys that are the cluster's own.
    """

    machine: str
    system: str
    glibc: tuple[int, int]
    cores: int
    python: str
    python_version: tuple[int, int]
    disk_free_kib: int
    home: str
    missing_libraries: tuple[str, ...]
    gpus: tuple[tuple[str, str], ...]
    files: frozenset[str]
    envs: frozenset[str]
    trees: frozenset[str]
    cluster_key: str | None
    known_hosts_sha256: str | None
    authorized: tuple[str, ...]


def gather_facts(connection: NodeConnection, *, python: str) -> NodeFacts:
    """Look at a node; `python` is [bootstrap] python. Raises NodeCommandError, ClusterError."""
    script = files("bootstrap").joinpath("node/facts.sh").read_text(encoding="utf-8")
    script = script.replace("__PYTHON__", quote_command([python]))
    output = connection.run(quote_command(["sh", "-c", script]), timeout_s=TIMEOUT_S, what="facts.sh")
    return parse_facts(output.stdout, node=connection.host.name)


def parse_facts(text: str, *, node: str) -> NodeFacts:
    """Read the `key=value` lines of facts.sh. Pure. Raises ClusterError when the node cannot be used."""
    single: dict[str, str] = {}
    several: dict[str, list[str]] = {key: [] for key in LIST_KEYS}
    for line in text.splitlines():
        key, _, value = line.partition("=")
        if key in several:
            several[key].append(value)
        else:
            single[key] = value.strip()
    if not single.get("python") or not single.get("python_version"):
        raise ClusterError(
            f"{node}: no working Python 3 was found there (looked for: {single.get('python') or 'python3'})",
            hint="set [bootstrap] python to the path of one, or take an image that has it",
        )
    return NodeFacts(
        machine=single["machine"],
        system=single.get("system", ""),
        glibc=_version(single.get("glibc") or "2.17"),
        cores=int(single["cores"]),
        python=single["python"],
        python_version=_version(single["python_version"]),
        disk_free_kib=int(single["disk_free_kib"]),
        home=single["home"],
        missing_libraries=tuple(several["missing"]),
        gpus=tuple(_gpu(line) for line in several["gpu"]),
        files=frozenset(several["file"]),
        envs=frozenset(several["env"]),
        trees=frozenset(several["tree"]),
        cluster_key=single.get("cluster_key"),
        known_hosts_sha256=single.get("known_hosts"),
        authorized=tuple(several["authorized"]),
    )


def _version(text: str) -> tuple[int, int]:
    major, _, minor = text.partition(".")
    return int(major), int(minor.split(".")[0])


def _gpu(line: str) -> tuple[str, str]:
    capability, _, name = line.partition(",")
    return capability.strip(), name.strip()
