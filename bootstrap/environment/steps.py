"""The steps that a node needs, planned from its facts, and the shell script that carries them out. Pure."""

import hashlib
import json
import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from msgspec import Struct

from bootstrap.environment.bundle import Bundle
from bootstrap.environment.cuda import find_cuda
from bootstrap.environment.facts import NodeFacts
from bootstrap.environment.file_cache import BundleFile
from bootstrap.runtime.code import FOLDER, STARTUP_DIR, runtime_digest
from bootstrap.transfer.tree import Tree
from node.engines.engine import Framework
from node.programs import program_words
from node.setup.apt import STOP_UPDATES
from provision.oracle.tables import show

STEPS_SILENCE_S = 900
"""How long a script without set-up commands may print nothing, in seconds."""
SETUP_SILENCE_S = 1800
"""How long set-up commands may print nothing, in seconds, before they are killed."""
SETUP_NOTICE_S = 60
"""After how many seconds without output the last line of set-up commands is shown."""
SETUP_FOLDER = "setup/$(uname -n)"
"""Of the results of set-up commands, as the shell writes it: hosts may share the home folder, but not these."""
APT = 'apt="$as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300"'
# The libraries that MXNet's wheels load from the system (`readelf -d` of libmxnet.so and the libraries next to it),
# except those that every system has: (Debian's package, Fedora's).
PACKAGES: Mapping[str, tuple[str, str]] = {
    "libgomp.so.1": ("libgomp1", "libgomp"),
    "libquadmath.so.0": ("libquadmath0", "libquadmath"),
    "libstdc++.so.6": ("libstdc++6", "libstdc++"),
}
# The wheels of PyTorch have their own libgomp. A framework that a Python of the node already has needs no library.
LIBRARIES: Mapping[Framework, tuple[str, ...]] = {
    "mxnet": tuple(PACKAGES),
    "pytorch": ("libstdc++.so.6",),
    "none": (),
}
# Extracts uv's binary from its wheel.
TAKE_UV = (
    "import sys, zipfile; wheel = zipfile.ZipFile(sys.argv[1]); "
    "name = next(n for n in wheel.namelist() if n.endswith('.data/scripts/uv')); "
    "open(sys.argv[2], 'wb').write(wheel.read(name))"
)
# Prints, for each folder of packages of a Python, a line for a .pth file that also reads the .pth files in the folder.
BASE_SITES = """
import sys
for path in sys.path:
    if path.rstrip("/").endswith(("site-packages", "dist-packages")):
        print("import site; site.addsitedir(%r)" % path)
"""


def setup_digest(commands: Sequence[str]) -> str | None:
    """The SHA-256 of the list of commands, in lower-case hexadecimal; None for an empty list. Pure."""
    return hashlib.sha256(render_commands(commands).encode()).hexdigest() if commands else None


def render_commands(commands: Sequence[str]) -> str:
    """The list of commands as run_setup.py reads it. Pure."""
    return json.dumps(list(commands))


class InstallPackages(Struct, frozen=True, kw_only=True):
    """Install the system packages that the framework needs and the node lacks: (Debian's name, Fedora's name) each."""

    packages: tuple[tuple[str, str], ...]

    def render(self) -> list[str]:
        """This step's lines of the script."""
        debian, fedora = (shlex.join(names) for names in zip(*self.packages, strict=True))
        failed = "could not be installed on this node: install it with [bootstrap] setup"
        return [
            "if command -v apt-get >/dev/null; then",
            f"    packages={shlex.quote(debian)}",
            f"    install() {{ {APT}; $apt update && $apt install -y --no-install-recommends $packages; }}",
            "else",
            f"    packages={shlex.quote(fedora)}",
            "    install() { $as_root dnf install -q -y $packages; }",
            "fi",
            f'install >&2 || {{ echo "MXNet or PyTorch needs $packages, which {failed}" >&2; exit 1; }}',
        ]


class RunSetup(Struct, frozen=True, kw_only=True):
    """Run the user's own set-up commands."""

    commands: tuple[str, ...]
    digest: str

    def render(self) -> list[str]:
        """This step's lines of the script."""
        return [
            f"setup={SETUP_FOLDER}",
            'mkdir -p "$setup"',
            f'printf %s {shlex.quote(render_commands(self.commands))} >"$setup/{self.digest}.json"',
            f'{runtime_program("run_setup")} "$setup" {self.digest}',
        ]


class MakeEnvironment(Struct, frozen=True, kw_only=True):
    """Make the Python environment from files on the node, and the newest, which `exec` and `ssh` use (ssh/host.py).

    python: the absolute path of a Python, in place of the target's. root: the folder of environments.
    with_modules: programs that train run in it, and import our modules, which the runtime on the node has.
    """

    bundle: Bundle
    python: str | None = None
    root: str = "env"
    with_modules: bool = True

    def render(self) -> list[str]:
        """This step's lines of the script."""
        bundle = self.bundle
        root, env = self.root, f"{self.root}/{bundle.digest}"
        uv = bundle.uv
        tool = f"tools/uv-{uv.sha256}"
        install = f"{tool} pip install --quiet --offline --no-index --no-deps --python {env}/bin/python"
        lines, env_python = self._find_python()
        return [
            f"if [ ! -f {env}/.complete ]; then",  # another command may have made it, whose job runs in it
            f"mkdir -p {root} tools",
            *lines,
            f"if [ ! -x {tool} ]; then",
            f"    {shlex.join([f'{FOLDER}/{runtime_digest()}/bin/python', '-c', TAKE_UV, _place(uv), f'{tool}.new'])}",
            f"    chmod 755 {tool}.new && mv {tool}.new {tool}",
            "fi",
            f"cache={root}/cache.new",  # environments share its files by hard links; what is left here may be damaged
            f"trap 'rm -rf {env} \"$cache\"' EXIT",  # of a script that fails: a full disk stays usable
            f'rm -rf {env} "$cache"; mkdir -p {root}/cache; mv {root}/cache "$cache"',
            'export UV_CACHE_DIR="$PWD/$cache" UV_PYTHON_DOWNLOADS=never UV_NO_CONFIG=1 UV_LINK_MODE=hardlink',
            f"{tool} venv --quiet --no-project --python {env_python} {env}",
            *([f"{install} {shlex.join(map(_place, bundle.wheels))}"] if bundle.wheels else []),
            *self._write_pth(env),
            '[ "$(find "$cache" -type f -links +1 | head -n 1)" ] || rm -rf "$cache"/*',  # where no links are possible
            f'mv "$cache" {root}/cache; trap - EXIT',
            "fi",
            f"touch {env}/.complete",
        ]

    def _write_pth(self, env: str) -> list[str]:
        """The lines that add our modules, and let the environment find its base's packages after its own."""
        target, code = self.bundle.target, f"{FOLDER}/{runtime_digest()}"
        base = target.base
        lines = [f'    cp -R {code}/mxnet_cluster "$site/"'] if self.with_modules else []
        if target.framework == "mxnet" and self.with_modules:
            lines.append(f'    cp {code}/{STARTUP_DIR}/_cluster_compat.py "$site/"')
            lines.append('    echo "import _cluster_compat" >"$site/_cluster_compat.pth"')
        if base is not None:
            sites = shlex.join([base.python.path, "-E", "-s", "-c", BASE_SITES])
            lines.append(f'    {sites} >"$site/_cluster_base.pth"')
        return [f"for site in {env}/lib/python3*/site-packages; do", *lines, "done"] if lines else []

    def _find_python(self) -> tuple[list[str], str]:
        """The lines that unpack the bundle's Python, if it is used, and the shell word of the Python to use."""
        target, packed = self.bundle.target, self.bundle.python
        if packed is None or self.python is not None:
            return [], shlex.quote(self.python or target.python_path or "")
        lines = UnpackPython(packed=packed).render()
        return lines, f"python/{packed.sha256}/bin/python{show(target.python_version)}"


class UnpackPython(Struct, frozen=True, kw_only=True):
    """Unpack a Python that this machine has sent."""

    packed: BundleFile

    def render(self) -> list[str]:
        """This step's lines of the script."""
        folder = f"python/{self.packed.sha256}"
        return [
            f"if [ ! -f {folder}/.complete ]; then",
            f"    rm -rf {folder} {folder}.new; mkdir -p {folder}.new",
            f"    tar -xzf {shlex.quote(_place(self.packed))} --no-same-owner -C {folder}.new",
            f"    touch {folder}.new/.complete; mv {folder}.new {folder}",
            "fi",
        ]


class CheckLibraries(Struct, frozen=True, kw_only=True):
    """Find out which libraries MXNet's library loads on this node, and which are missing.

    env: the environment's digest. key: identifies the inputs of the check. dirs: the image's directories with CUDA.
    setup: the digest of the set-up commands whose LD_LIBRARY_PATH is searched as well, or None.
    """

    env: str
    key: str
    dirs: tuple[str, ...]
    setup: str | None

    def render(self) -> list[str]:
        """This step's lines of the script."""
        setup_env = f'"{SETUP_FOLDER}/{self.setup}.env"' if self.setup else "''"
        check = f"{runtime_program('check_libraries')} env/{self.env} {self.key}"
        return [f"{check} {setup_env} {shlex.join(self.dirs)}"]


class MakeClusterKey(Struct, frozen=True, kw_only=True):
    """Make, on the head, the key pair with which only the head logs in to the other nodes."""

    cluster: str

    def render(self) -> list[str]:
        """This step's lines of the script."""
        comment = shlex.quote(f"cluster-internal {self.cluster}")
        return [
            "if [ ! -s ssh/id_ed25519.pub ]; then",  # as above; an empty one is made again
            "rm -f ssh/new ssh/new.pub",
            f"ssh-keygen -q -t ed25519 -N '' -C {comment} -f ssh/new",
            "mv ssh/new ssh/id_ed25519",
            "mv ssh/new.pub ssh/id_ed25519.pub",
            "fi",
        ]


Step = InstallPackages | RunSetup | UnpackPython | MakeEnvironment | CheckLibraries | MakeClusterKey
"""`render` makes its lines of the script. All but UnpackPython need the runtime on the node."""


class NodePlan(Struct, frozen=True, kw_only=True):
    """Everything that a node lacks. It gets the `files` first, then the `steps` of its script, then the `trees`."""

    files: tuple[BundleFile, ...] = ()
    steps: tuple[Step, ...] = ()
    trees: tuple[Tree, ...] = ()

    def __bool__(self) -> bool:
        """Whether the node lacks anything."""
        return bool(self.files or self.steps or self.trees)


def plan_setup(facts: NodeFacts, *, commands: Sequence[str], framework: Framework = "mxnet") -> NodePlan:
    """The plan for set-up commands ([bootstrap] setup) that have not run on a node. Pure.

    The commands may change every fact: gather the facts again before `plan_node`.
    """
    digest = setup_digest(commands)
    if digest is None or digest in facts.setups:
        return NodePlan()
    return NodePlan(
        steps=(*_plan_packages(facts, LIBRARIES[framework]), RunSetup(commands=tuple(commands), digest=digest))
    )


def plan_node(
    facts: NodeFacts,
    *,
    bundle: Bundle,
    setup: str | None,
    trees: Sequence[Tree],
    cluster: str,
    is_head: bool,
    client: Bundle | None = None,
) -> NodePlan:
    """The plan that makes a node ready to train. Pure.

    setup: the digest of the set-up commands, which have run. client: the environment of this project's own command.
    """
    libraries = LIBRARIES[bundle.target.framework] if bundle.target.base is None else ()
    steps: list[Step] = [*_plan_packages(facts, libraries)]
    needed: list[BundleFile] = []
    if client is not None and client.digest not in facts.envs:
        needed += client.files
        steps.append(MakeEnvironment(bundle=client, with_modules=False))
    if bundle.digest not in facts.envs:
        needed += bundle.files
    if needed or facts.newest_env not in ("", bundle.digest):  # or cluster.toml is again as it was before
        steps.append(MakeEnvironment(bundle=bundle))
    if client is not None and bundle.python is not None:  # for new nodes: another machine's has other bytes
        needed.append(bundle.python)
    files = [file for file in dict.fromkeys(needed) if file.sha256 not in facts.files]
    check = plan_check(facts, bundle=bundle, setup=setup)
    if check is not None:
        steps.append(check)
    lacking = tuple(tree for tree in trees if tree.digest not in facts.trees)
    if is_head and facts.cluster_key is None:
        steps.append(MakeClusterKey(cluster=cluster))
    return NodePlan(files=tuple(files), steps=tuple(steps), trees=lacking)


def plan_python(facts: NodeFacts, packed: BundleFile | None) -> tuple[tuple[BundleFile, ...], tuple[Step, ...]]:
    """The files and the steps that a node needs before it gets the tree of our own programs. Pure.

    packed: the Python that this machine sends for it; None if the node has one.
    """
    if packed is None or packed.sha256 in facts.pythons_ready:
        return (), ()
    return () if packed.sha256 in facts.files else (packed,), (UnpackPython(packed=packed),)


def _plan_packages(facts: NodeFacts, libraries: Collection[str]) -> tuple[InstallPackages, ...]:
    packages = tuple(PACKAGES[name] for name in facts.missing_libraries if name in libraries)
    return (InstallPackages(packages=packages),) if packages else ()


def plan_check(facts: NodeFacts, *, bundle: Bundle, setup: str | None) -> CheckLibraries | None:
    """The check of libmxnet.so's libraries; None if it was done and its inputs have not changed. Pure.

    Only an MXNet from a wheel needs it: other frameworks load their libraries themselves.
    """
    if bundle.target.mxnet is None:
        return None
    cuda = find_cuda(facts, bundle.target.mxnet)
    content = [setup, cuda.library_dirs, sorted(facts.libraries), cuda.missing]
    key = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]
    checked = facts.checked.get(bundle.digest)
    if bundle.digest in facts.envs and checked is not None and checked.key == key:
        return None
    return CheckLibraries(env=bundle.digest, key=key, dirs=cuda.library_dirs, setup=setup)


def script_task(steps: Sequence[Step], *, what: str) -> dict[str, Any]:
    """The task for a node's agent that runs the script of these steps; what: its name in messages. Pure."""
    text = render_script(steps)
    if any(isinstance(step, RunSetup) for step in steps):
        silence_s, notice_s = SETUP_SILENCE_S, SETUP_NOTICE_S
    else:
        silence_s, notice_s = STEPS_SILENCE_S, None
    return {"kind": "script", "what": what, "text": text, "silence_s": silence_s, "notice_s": notice_s}


def render_script(steps: Sequence[Step]) -> str:
    """The POSIX shell script of one node's steps, run in the user's home.

    agent.py has put the files in place and holds the lock. The script creates everything under a temporary name or
    marks it complete at the end, so that a killed script leaves nothing that looks complete.
    """
    lines = ["set -eu", "umask 077", 'cd "$HOME/.cluster"']
    if any(isinstance(step, InstallPackages | RunSetup) for step in steps):
        # Even steps that fail may change the facts that facts.sh has cached.
        lines += ["rm -f known", *_free_apt()]
    for step in steps:
        lines += step.render()
    return "\n".join([*lines, ""])


def _place(file: BundleFile) -> str:
    return f"files/{file.sha256}/{file.name}"


def runtime_program(name: str) -> str:
    """The words of a shell in ~/.cluster that run a program of the runtime (node/__main__.py)."""
    return shlex.join(program_words(name, code_dir=f"{FOLDER}/{runtime_digest()}"))


def _free_apt() -> list[str]:
    """The lines that stop automatic updates, and define `$as_root` for the rest of the script."""
    return [
        'as_root=; [ "$(id -u)" = 0 ] || as_root="sudo -n"',
        "if command -v apt-get >/dev/null && $as_root true 2>/dev/null; then",
        f"    $as_root sh -c {shlex.quote(STOP_UPDATES)}",
        "fi",
    ]
