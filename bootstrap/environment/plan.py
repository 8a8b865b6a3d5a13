"""Plans the steps that a node still needs, from its facts. Pure; script.py renders them."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from bootstrap.environment.bundle import Bundle
from bootstrap.environment.cuda import find_cuda
from bootstrap.environment.facts import NodeFacts
from bootstrap.environment.file_cache import BundleFile
from bootstrap.environment.pythons import ChosenPython
from bootstrap.transfer.tree import Tree
from foundation.errors import ClusterError

SILENCE_S = 1800
"""How long the commands may print nothing, in seconds, before they are ended as hung."""
APT_TIMEOUT_S = 300
"""How long to wait for others who install packages on the node, in seconds."""
# The libraries that MXNet's wheels take from the system (`readelf -d` of libmxnet.so and of what is beside it), beyond
# those without which no system runs: in Debian's package, in Fedora's.
PACKAGES = {
    "libgomp.so.1": ("libgomp1", "libgomp"),
    "libquadmath.so.0": ("libquadmath0", "libquadmath"),
    "libstdc++.so.6": ("libstdc++6", "libstdc++"),
}
# For folders and the last blocks of files, which the sizes in archives do not include.
OVERHEAD = 1.05


def setup_digest(commands: Sequence[str]) -> str | None:
    """SHA-256 of the list, in lower-case hexadecimal; None for an empty one. Pure."""
    return hashlib.sha256(render_commands(commands).encode()).hexdigest() if commands else None


def render_commands(commands: Sequence[str]) -> str:
    """The list as run_setup.py reads it. Pure."""
    return json.dumps(list(commands))


@dataclass(frozen=True, kw_only=True, slots=True)
class SendFile:
    """A file that the node does not have yet."""

    file: BundleFile


@dataclass(frozen=True, kw_only=True, slots=True)
class MakeEnvironment:
    """Build the Python environment from files that are there.

    python: absolute, of the Python that it is made with, or None for the one in the bundle.
    """

    bundle: Bundle
    python: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckLibraries:
    """Find out which libraries MXNet's library loads on this node, and which are missing.

    env: the environment's digest. key: identifies the inputs of the check. dirs: where the image has CUDA.
    setup: the digest of the set-up commands whose LD_LIBRARY_PATH is searched as well, or None.
    """

    env: str
    key: str
    dirs: tuple[str, ...]
    setup: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class PlaceTree:
    """Put code or the user's files in place: agent.py does it, from an archive."""

    tree: Tree


@dataclass(frozen=True, kw_only=True, slots=True)
class MakeClusterKey:
    """On the head: a key pair with which only the head logs in to the other nodes."""

    cluster: str


@dataclass(frozen=True, kw_only=True, slots=True)
class InstallPackages:
    """System packages that MXNet needs, if they are missing: (Debian's name, Fedora's name) each."""

    packages: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSetup:
    """The user's own set-up commands."""

    commands: tuple[str, ...]
    digest: str


NodeStep = InstallPackages | RunSetup | SendFile | MakeEnvironment | CheckLibraries | PlaceTree | MakeClusterKey


def plan_setup(facts: NodeFacts, *, commands: Sequence[str]) -> tuple[NodeStep, ...]:
    """The steps of a node whose set-up commands ([bootstrap] setup) have not run yet; otherwise none. Pure.

    The commands may change every fact: gather the facts again before `plan_node`.
    """
    digest = setup_digest(commands)
    if digest is None or digest in facts.setups:
        return ()
    return (*_plan_packages(facts), RunSetup(commands=tuple(commands), digest=digest))


def plan_node(
    facts: NodeFacts,
    *,
    bundle: Bundle,
    python: ChosenPython,
    setup: str | None,
    trees: Sequence[Tree],
    cluster: str,
    is_head: bool,
    node: str,
    packages: tuple[tuple[str, str], ...] = (),
) -> tuple[NodeStep, ...]:
    """The steps to a node that can train; empty when nothing is missing. Pure.

    setup: the digest of the set-up commands, which have run. packages: the system's that an MXNet from source is
    linked with. Raises ClusterError when the node's disk cannot take it.
    """
    is_new = bundle.digest not in facts.envs
    steps: list[NodeStep] = [*_plan_packages(facts, packages if is_new else ())]
    needed_bytes = 0.0
    if is_new:
        missing = [file for file in bundle.files if file.sha256 not in facts.files]
        steps += [SendFile(file=file) for file in missing]
        steps.append(MakeEnvironment(bundle=bundle, python=python.path))
        needed_bytes += _find_growth(facts, bundle, missing)
    check = plan_check(facts, bundle=bundle, setup=setup)
    if check is not None:
        steps.append(check)
    lacking = [tree for tree in trees if tree.digest not in facts.trees]
    steps += [PlaceTree(tree=tree) for tree in lacking]
    needed_bytes += 2 * sum(tree.size_bytes for tree in lacking)  # as an archive, and in its place
    if is_head and facts.cluster_key is None:
        steps.append(MakeClusterKey(cluster=cluster))
    _check_disk(facts, needed_bytes, node=node)
    return tuple(steps)


def _plan_packages(facts: NodeFacts, others: Sequence[tuple[str, str]] = ()) -> tuple[InstallPackages, ...]:
    packages = (*(PACKAGES[name] for name in facts.missing_libraries), *others)
    return (InstallPackages(packages=packages),) if packages else ()


def plan_check(facts: NodeFacts, *, bundle: Bundle, setup: str | None) -> CheckLibraries | None:
    """The check of libmxnet.so's libraries; None if it was made and its inputs have not changed. Pure."""
    cuda = find_cuda(facts, bundle.target.requirements[0])
    content = [setup, cuda.library_dirs, sorted(facts.libraries), cuda.missing]
    key = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]
    checked = facts.checked.get(bundle.digest)
    if bundle.digest in facts.envs and checked is not None and checked.key == key:
        return None
    return CheckLibraries(env=bundle.digest, key=key, dirs=cuda.library_dirs, setup=setup)


def _find_growth(facts: NodeFacts, bundle: Bundle, missing: Sequence[BundleFile]) -> float:
    """How many bytes an environment takes, with the files that it is made from."""
    unpacked = sum(file.unpacked_bytes for file in bundle.files if _is_unpacked(facts, file))
    return (sum(file.size_bytes for file in missing) + unpacked) * OVERHEAD


def _check_disk(facts: NodeFacts, needed_bytes: float, *, node: str) -> None:
    needed_kib = int(needed_bytes) >> 10
    if facts.disk_free_kib < needed_kib:
        raise ClusterError(
            f"{node}: {facts.disk_free_kib >> 10} MiB of disk are free at {facts.home}, "
            f"and the MXNet environment and your files take {needed_kib >> 10} MiB more",
            hint="free some space there, or set a larger [provision] volume_size_gib and make the cluster anew",
        )


def _is_unpacked(facts: NodeFacts, file: BundleFile) -> bool:
    return file.sha256 not in facts.pythons_ready
