"""Renders the shell script that carries out a node's steps. Pure, except for reading the programs in node/."""

import shlex
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

from bootstrap.environment.bundle import COMPAT_FILE, Bundle
from bootstrap.environment.plan import (
    APT_TIMEOUT_S,
    SILENCE_S,
    CheckLibraries,
    InstallPackages,
    MakeClusterKey,
    MakeEnvironment,
    NodeStep,
    PlaceTree,
    RunSetup,
    SendFile,
    render_commands,
)
from provision.oracle.gpus import show

STEPS_SILENCE_S = 900
"""How long a script without set-up commands may print nothing, in seconds."""
APT = 'apt="$as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300"'
# uv's binary out of its wheel; a packed Python.
TAKE_UV = (
    "import sys, zipfile; wheel = zipfile.ZipFile(sys.argv[1]); "
    "name = next(n for n in wheel.namelist() if n.endswith('.data/scripts/uv')); "
    "open(sys.argv[2], 'wb').write(wheel.read(name))"
)
UNPACK = "import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])"


def silence_s(steps: Sequence[NodeStep]) -> int:
    """How long the script of these steps may print nothing, in seconds. Pure."""
    # run_setup.py ends silent commands itself, and says which.
    return SILENCE_S + 60 if any(isinstance(step, RunSetup) for step in steps) else STEPS_SILENCE_S


def render_script(steps: Sequence[NodeStep], *, python: str) -> str:
    """The POSIX shell script of one node's steps; run in the home of the user. python: runs our own programs there.

    agent.py has put the files in place and holds the lock. Everything is made under a temporary name or marked complete
    at the end, so that a killed script leaves nothing that looks finished.
    """
    lines = ["set -eu", "umask 077", 'cd "$HOME/.cluster"']
    preparing = [step for step in steps if isinstance(step, InstallPackages | RunSetup)]
    if preparing:
        # What facts.sh has cached may change, even where these steps fail half way.
        lines += ["rm -f known", *_free_apt(python)]
    for step in steps:
        lines += _render(step, python)
    return "\n".join([*lines, ""])


def _render(step: NodeStep, python: str) -> list[str]:  # noqa: PLR0911 - a line for each kind of step
    match step:
        case InstallPackages():
            return _packages(step.packages)
        case RunSetup():
            return _setup(step, python)
        case SendFile():
            return []  # agent.py has put it in place
        case MakeEnvironment():
            return _environment(step, python)
        case CheckLibraries():
            return _check(step, python)
        case PlaceTree():
            return []  # a task of its own
        case MakeClusterKey():
            return _cluster_key(step.cluster)


@cache
def _program(name: str) -> str:
    return files("bootstrap").joinpath("node", name).read_text(encoding="utf-8")


def _run_program(python: str, name: str, *arguments: str) -> str:
    return shlex.join([python, "-c", _program(name), *arguments])


def _free_apt(python: str) -> list[str]:
    """Wait for others who install packages; the rest of the script then has `$as_root`."""
    return [
        'as_root=; [ "$(id -u)" = 0 ] || as_root="sudo -n"',
        "if command -v apt-get >/dev/null && $as_root true 2>/dev/null; then",
        f"    $as_root {_run_program(python, 'apt_lock.py', str(APT_TIMEOUT_S))}",
        "fi",
    ]


def _packages(packages: Sequence[tuple[str, str]]) -> list[str]:
    debian, fedora = (shlex.join(names) for names in zip(*packages, strict=True))
    failed = "could not be installed on this node: install it by [bootstrap] setup"
    return [
        "missing=",
        "if command -v apt-get >/dev/null; then",
        f"    for name in {debian}; do",
        "        dpkg-query -W -f='${Status}' $name 2>/dev/null | grep -q 'ok installed' || missing=\"$missing $name\"",
        "    done",
        "    install() {",
        f"        {APT}",
        '        $apt update && $apt install -y --no-install-recommends "$@"',
        "    }",
        "else",
        f'    for name in {fedora}; do rpm -q "$name" >/dev/null 2>&1 || missing="$missing $name"; done',
        '    install() { $as_root dnf install -q -y "$@"; }',
        "fi",
        '[ -z "$missing" ] || install $missing >&2 ||',
        f'    {{ echo "MXNet needs$missing, and that {failed}" >&2; exit 1; }}',
    ]


def _setup(step: RunSetup, python: str) -> list[str]:
    return [
        "mkdir -p setup",
        f"printf %s {shlex.quote(render_commands(step.commands))} >setup/{step.digest}.json",
        _run_program(python, "run_setup.py", "setup", step.digest, str(SILENCE_S)),
    ]


def _environment(step: MakeEnvironment, node_python: str) -> list[str]:
    bundle = step.bundle
    env = f"env/{bundle.digest}"
    uv, compat = bundle.uv, bundle.compat
    own_python = shlex.quote(node_python)
    paths = shlex.join(f"files/{file.sha256}/{file.name}" for file in bundle.wheels)
    lines, python = _python(step, node_python)
    tool = f"tools/uv-{uv.sha256}"
    return [
        *_forget_damaged(bundle),
        "mkdir -p env tools",
        *lines,
        f"if [ ! -x {tool} ]; then",
        f"    {own_python} -c {shlex.quote(TAKE_UV)} {shlex.quote(f'files/{uv.sha256}/{uv.name}')} {tool}.new",
        f"    chmod 755 {tool}.new && mv {tool}.new {tool}",
        "fi",
        f"rm -rf {env} env/cache",
        # On the same file system as the environment, so that uv can link from it instead of copying.
        'export UV_CACHE_DIR="$PWD/env/cache" UV_PYTHON_DOWNLOADS=never UV_NO_CONFIG=1 UV_LINK_MODE=hardlink',
        f"{tool} venv --quiet --no-project --python {python} {env}",
        f"{tool} pip install --quiet --offline --no-index --no-deps --python {env}/bin/python {paths}",
        f"for site in {env}/lib/python3*/site-packages; do",
        f'    cp files/{compat.sha256}/{COMPAT_FILE} "$site/"',
        '    echo "import _cluster_compat" >"$site/_cluster_compat.pth"',
        "done",
        "rm -rf env/cache",
        f"touch {env}/.complete",
        "trap - EXIT",
    ]


def _forget_damaged(bundle: Bundle) -> list[str]:
    """Removes files that have changed on disk. Only after a failure, since hashing takes 2 s per GB."""
    return [
        "forget_damaged() {",
        "    code=$?",
        f"    for file in {shlex.join(f'files/{file.sha256}/{file.name}' for file in bundle.files)}; do",
        "        sha256=${file#files/} sha256=${sha256%%/*}",
        '        [ ! -f "$file" ] || [ "$(sha256sum <"$file")" = "$sha256  -" ] || {',
        '            rm -rf "files/$sha256"',
        '            echo "$file was damaged and is removed: the same command again brings it anew" >&2',
        "        }",
        "    done",
        "    exit $code",
        "}",
        "trap forget_damaged EXIT",
    ]


def _python(step: MakeEnvironment, node_python: str) -> tuple[list[str], str]:
    """The lines that unpack the bundle's Python, if it has one; and the shell word of the Python to use."""
    packed = step.bundle.python
    if packed is None or step.python is not None:
        return [], shlex.quote(step.python or node_python)
    folder = f"python/{packed.sha256}"
    archive = f"files/{packed.sha256}/{packed.name}"
    unpack = [node_python, "-W", "ignore", "-c", UNPACK, archive, f"{folder}.new"]
    lines = [
        f"if [ ! -f {folder}/.complete ]; then",
        f"    rm -rf {folder} {folder}.new; mkdir -p {folder}.new",
        f"    {shlex.join(unpack)}",
        f"    touch {folder}.new/.complete; mv {folder}.new {folder}",
        "fi",
    ]
    return lines, f"{folder}/bin/python{show(step.bundle.target.python_version)}"


def _check(step: CheckLibraries, python: str) -> list[str]:
    setup_env = f"setup/{step.setup}.env" if step.setup else ""
    arguments = [f"env/{step.env}", step.key, setup_env, *step.dirs]
    return [_run_program(python, "check_libraries.py", *arguments)]


def _cluster_key(cluster: str) -> list[str]:
    comment = shlex.quote(f"cluster-internal {cluster}")
    return [
        "rm -f ssh/new ssh/new.pub",
        f"ssh-keygen -q -t ed25519 -N '' -C {comment} -f ssh/new",
        "mv ssh/new ssh/id_ed25519",
        "mv ssh/new.pub ssh/id_ed25519.pub",
    ]
