"""What a node still lacks: pure decisions from its facts. script.py has how it is done."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from bootstrap.bundle import Bundle, BundleFile
from bootstrap.cuda import find_cuda
from bootstrap.facts import NodeFacts
from bootstrap.pythons import ChosenPython
from bootstrap.setup import setup_digest
from bootstrap.tree import Tree
from provision.errors import ClusterError

# Folders and the files' last blocks, beside what archives say of their content.
OVERHEAD = 1.05


@dataclass(frozen=True, kw_only=True, slots=True)
class SendFile:
    """A file that the node does not have yet."""

    file: BundleFile


@dataclass(frozen=True, kw_only=True, slots=True)
class MakeEnvironment:
    """Build the Python environment from files that are there.

    python: absolute, of the Python that it is made with, or None for the one in the bundle. node_python: the one that
    our own programs run with.
    """

    bundle: Bundle
    python: str | None
    node_python: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckLibraries:
    """Find out what MXNet's library loads on this node, and what is nowhere.

    env: the environment's digest. key: stands for all that the answer depends on. dirs: where the image has its CUDA.
    setup: the digest of the set-up commands whose LD_LIBRARY_PATH counts as well, or None.
    """

    env: str
    key: str
    dirs: tuple[str, ...]
    setup: str | None
    node_python: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PlaceTree:
    """Put code or the user's files in place: agent.py does it, from a pack."""

    tree: Tree


@dataclass(frozen=True, kw_only=True, slots=True)
class MakeClusterKey:
    """On the head: a key pair with which the head, and nobody else, reaches the nodes."""

    cluster: str


@dataclass(frozen=True, kw_only=True, slots=True)
class InstallLibraries:
    """What MXNet's wheels take from the system and the system does not have, by its own package tool."""

    names: tuple[str, ...]
    node_python: str


@dataclass(frozen=True, kw_only=True, slots=True)
class InstallPackages:
    """What an MXNet from source is built or linked with, unless the system has it: (Debian's name, Fedora's) each."""

    packages: tuple[tuple[str, str], ...]
    node_python: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSetup:
    """The user's own set-up commands."""

    commands: tuple[str, ...]
    digest: str
    node_python: str


NodeStep = (
    InstallLibraries
    | InstallPackages
    | RunSetup
    | SendFile
    | MakeEnvironment
    | CheckLibraries
    | PlaceTree
    | MakeClusterKey
)


def plan_setup(facts: NodeFacts, *, commands: Sequence[str]) -> tuple[NodeStep, ...]:
    """The steps of a node whose set-up commands ([bootstrap] setup) have not run yet; otherwise none. Pure.

    What they install may change every fact: look at the node again before `plan_node`.
    """
    digest = setup_digest(commands)
    if digest is None or digest in facts.setups:
        return ()
    run = RunSetup(commands=tuple(commands), digest=digest, node_python=facts.python)
    return (*_plan_libraries(facts), run)


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
    """The steps from what is there to a node that can train; empty when nothing is missing. Pure.

    setup: the digest of the set-up commands, which have run. packages: the system's that an MXNet from source is
    linked with. Raises ClusterError when the node's disk cannot take it.
    """
    steps: list[NodeStep] = [*_plan_libraries(facts)]
    needed_bytes = 0.0
    if bundle.digest not in facts.envs:
        if packages:
            steps.append(InstallPackages(packages=packages, node_python=facts.python))
        missing = [file for file in bundle.files if file.sha256 not in facts.files]
        steps += [SendFile(file=file) for file in missing]
        steps.append(MakeEnvironment(bundle=bundle, python=python.path, node_python=facts.python))
        needed_bytes += _find_growth(facts, bundle, missing)
    check = plan_check(facts, bundle=bundle, setup=setup)
    if check is not None:
        steps.append(check)
    lacking = [tree for tree in trees if tree.digest not in facts.trees]
    steps += [PlaceTree(tree=tree) for tree in lacking]
    needed_bytes += 2 * sum(tree.size_bytes for tree in lacking)  # as a pack, and in its place
    if is_head and facts.cluster_key is None:
        steps.append(MakeClusterKey(cluster=cluster))
    _check_disk(facts, needed_bytes, node=node)
    return tuple(steps)


def _plan_libraries(facts: NodeFacts) -> tuple[InstallLibraries, ...]:
    if not facts.missing_libraries:
        return ()
    return (InstallLibraries(names=facts.missing_libraries, node_python=facts.python),)


def plan_check(facts: NodeFacts, *, bundle: Bundle, setup: str | None) -> CheckLibraries | None:
    """The check of what libmxnet.so finds, unless it was made and nothing that it depends on has changed. Pure."""
    cuda = find_cuda(facts, bundle.target.requirements[0])
    content = [setup, cuda.library_dirs, sorted(facts.libraries), cuda.missing]
    key = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]
    checked = facts.checked.get(bundle.digest)
    if bundle.digest in facts.envs and checked is not None and checked.key == key:
        return None
    return CheckLibraries(env=bundle.digest, key=key, dirs=cuda.library_dirs, setup=setup, node_python=facts.python)


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
