"""What a node still lacks: pure decisions from its facts, and the one shell script that carries them out."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from bootstrap.bundle import COMPAT_FILE, Bundle, BundleFile
from bootstrap.facts import NodeFacts
from bootstrap.tree import FileTree
from provision.errors import ClusterError

INCOMING = ".cluster/incoming"
# Unpacked wheels beside their packed files: MXNet's CPU wheel grows from 55 to 190 MB, the GPU ones likewise.
UNPACKED_FACTOR = 5
# The libraries that MXNet's wheels take from the system (`readelf -d` of libmxnet.so and of what is beside it), beyond
# those without which no system runs: in Debian's package, in Fedora's.
PACKAGES = {
    "libgomp.so.1": ("libgomp1", "libgomp"),
    "libquadmath.so.0": ("libquadmath0", "libquadmath"),
    "libstdc++.so.6": ("libstdc++6", "libstdc++"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class SendFile:
    """A file that the node does not have yet."""

    file: BundleFile


@dataclass(frozen=True, kw_only=True, slots=True)
class MakeEnvironment:
    """Build the Python environment from files that are there."""

    digest: str
    python: str
    files: tuple[BundleFile, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class UnpackTree:
    """Put the code and scripts in place."""

    tree: FileTree


@dataclass(frozen=True, kw_only=True, slots=True)
class MakeClusterKey:
    """On the head: a key pair with which the head, and nobody else, reaches the nodes."""

    cluster: str


@dataclass(frozen=True, kw_only=True, slots=True)
class InstallLibraries:
    """What MXNet's wheels take from the system and the system does not have, by its own package tool."""

    names: tuple[str, ...]


NodeStep = InstallLibraries | SendFile | MakeEnvironment | UnpackTree | MakeClusterKey


def plan_node(
    facts: NodeFacts, *, bundle: Bundle, tree: FileTree, cluster: str, is_head: bool, node: str
) -> tuple[NodeStep, ...]:
    """The steps from what is there to a node that can train; empty when nothing is missing. Pure.

    Raises ClusterError when the node's disk cannot take it.
    """
    steps: list[NodeStep] = []
    if facts.missing_libraries:
        steps.append(InstallLibraries(names=facts.missing_libraries))
    if bundle.digest not in facts.envs:
        missing = [file for file in bundle.files if file.sha256 not in facts.files]
        steps += [SendFile(file=file) for file in missing]
        steps.append(MakeEnvironment(digest=bundle.digest, python=facts.python, files=bundle.files))
        needed_kib = UNPACKED_FACTOR * sum(file.size_bytes for file in bundle.files) // 1024
        if facts.disk_free_kib < needed_kib:
            raise ClusterError(
                f"{node}: {facts.disk_free_kib >> 10} MiB of disk are free at {facts.home}, "
                f"and the MXNet environment takes up to {needed_kib >> 10} MiB",
                hint="free some space there, or set a larger [provision] volume_size_gib and make the cluster anew",
            )
    if tree.digest not in facts.trees:
        steps.append(UnpackTree(tree=tree))
    if is_head and facts.cluster_key is None:
        steps.append(MakeClusterKey(cluster=cluster))
    return tuple(steps)


def render_script(steps: Sequence[NodeStep]) -> str:
    """The POSIX shell script of one node's steps; run in the home of the user. Pure.

    Files have been put into INCOMING under their digests. Everything is made under another name, or marked complete
    last, so that a script that is killed leaves nothing that looks finished.
    """
    lines = ["set -eu", "umask 077", 'cd "$HOME/.cluster"']
    # The script outlives a command that is killed: facts.sh waits for it, so that the next command does not meet it.
    lines += ["exec 9<.", "flock 9", "mkdir -p files env tree tools ssh"]
    for step in steps:
        match step:
            case InstallLibraries():
                lines += _libraries(step.names)
            case SendFile():
                lines += _accept(step.file.sha256, f"files/{step.file.sha256}/{step.file.name}")
            case MakeEnvironment():
                lines += _environment(step)
            case UnpackTree():
                lines += _tree(step.tree.digest)
            case MakeClusterKey():
                comment = shlex.quote(f"cluster-internal {step.cluster}")
                lines += [
                    "rm -f ssh/new ssh/new.pub",
                    f"ssh-keygen -q -t ed25519 -N '' -C {comment} -f ssh/new",
                    "mv ssh/new ssh/id_ed25519",
                    "mv ssh/new.pub ssh/id_ed25519.pub",
                ]
    return "\n".join([*lines, "rmdir incoming 2>/dev/null || true", ""])


def _libraries(names: Sequence[str]) -> list[str]:
    debian = " ".join(PACKAGES[name][0] for name in names)
    fedora = " ".join(PACKAGES[name][1] for name in names)
    failed = shlex.quote(f"MXNet needs {', '.join(names)}, and that could not be installed on this node")
    return [
        "if command -v apt-get >/dev/null; then",
        # A fresh Ubuntu updates itself at its first boot and holds apt's lock meanwhile.
        "    apt='sudo -n env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300'",
        f"    $apt update && $apt install -y --no-install-recommends {debian}",
        f"elif command -v dnf >/dev/null; then sudo -n dnf install -q -y {fedora}",
        "else false",
        f"fi >&2 || {{ echo {failed} >&2; exit 1; }}",
    ]


def _accept(sha256: str, destination: str) -> list[str]:
    """Take a file that was sent, if it is what it should be."""
    incoming, final = shlex.quote(f"incoming/{sha256}"), shlex.quote(destination)
    return [
        f"if ! echo {shlex.quote(f'{sha256}  incoming/{sha256}')} | sha256sum --check --status; then",
        f"    rm -f {incoming}; echo {shlex.quote(f'{destination}: arrived damaged')} >&2; exit 1",
        "fi",
        f'mkdir -p "$(dirname {final})"',
        f"mv -f {incoming} {final}",
    ]


def _environment(step: MakeEnvironment) -> list[str]:
    env = f"env/{step.digest}"
    uv = next(file for file in step.files if file.name.startswith("uv-"))
    compat = next(file for file in step.files if file.name == COMPAT_FILE)
    wheels = [file for file in step.files if file not in {uv, compat}]
    paths = " ".join(shlex.quote(f"files/{file.sha256}/{file.name}") for file in wheels)
    python = shlex.quote(step.python)
    unpack = (
        "import sys, zipfile; wheel = zipfile.ZipFile(sys.argv[1]); "
        "name = next(n for n in wheel.namelist() if n.endswith('.data/scripts/uv')); "
        "open(sys.argv[2], 'wb').write(wheel.read(name))"
    )
    tool = f"tools/uv-{uv.sha256}"
    return [
        f"if [ ! -x {tool} ]; then",
        f"    {python} -c {shlex.quote(unpack)} {shlex.quote(f'files/{uv.sha256}/{uv.name}')} {tool}.new",
        f"    chmod 755 {tool}.new && mv {tool}.new {tool}",
        "fi",
        f"rm -rf {env} env/cache",
        # On the same file system as the environment, so that uv can link from it instead of copying.
        'export UV_CACHE_DIR="$PWD/env/cache" UV_PYTHON_DOWNLOADS=never UV_NO_CONFIG=1',
        f"{tool} venv --quiet --no-project --python {python} {env}",
        f"{tool} pip install --quiet --offline --no-index --no-deps --python {env}/bin/python {paths}",
        f"site=$({env}/bin/python -c 'import sysconfig; print(sysconfig.get_path(\"purelib\"))')",
        f'cp files/{compat.sha256}/{COMPAT_FILE} "$site/"',
        'echo "import _cluster_compat" >"$site/_cluster_compat.pth"',
        "rm -rf env/cache",
        f"touch {env}/.complete",
    ]


def _tree(digest: str) -> list[str]:
    return [
        *_accept(digest, f"tree/{digest}.tar"),
        f"rm -rf tree/{digest}",
        f"mkdir tree/{digest}",
        f"tar -xf tree/{digest}.tar -C tree/{digest}",
        f"rm tree/{digest}.tar",
        f"touch tree/{digest}/.complete",
    ]
