"""Asks the loader which libraries an environment's libmxnet.so does not find, and stores the answer in the environment.

    check_libraries ENV KEY SETUP_ENV [DIRECTORY...]

The directories are searched after those of the nvidia-* wheels, and before those that the set-up commands have added to
LD_LIBRARY_PATH (SETUP_ENV is the file with their exports; it may be ""). The program writes two files: ENV/.preload has
the libraries found in these directories, in the order in which _cluster_compat.py loads them; ENV/.unresolved has
`checked KEY`, and the names of the missing libraries.
"""

import glob
import json
import os
import subprocess
import sys
from collections.abc import Sequence

from node.job_folder import write_whole

# (start of a library's name, pattern of the libraries in its folder that it loads by name when it needs them).
BESIDE = (("libnvrtc.so", "libnvrtc-builtins.so*"), ("libcudnn.so", "libcudnn_*.so.[0-9]"))


def find_dirs(env: str, extra: Sequence[str], setup_env: str) -> list[str]:
    """Every directory to search, in order."""
    dirs = sorted(glob.glob(os.path.join(env, "lib", "python3*", "site-packages", "nvidia", "*", "lib")))
    dirs.extend(extra)
    if setup_env:
        with open(setup_env, encoding="utf-8") as stream:
            changes = json.load(stream)
        for key in ("prepend", "append"):
            dirs += changes[key].get("LD_LIBRARY_PATH", [])
    return [folder for folder in dirs if os.path.isdir(folder)]


def parse_ldd(text: str, dirs: Sequence[str]) -> tuple[list[str], list[str]]:
    """(paths of libraries below `dirs`, names of missing libraries) in the output of ldd. Pure."""
    found: list[str] = []
    missing: list[str] = []
    for line in text.splitlines():
        name, arrow, path = (part.strip() for part in line.partition("=>"))
        if not arrow:
            continue
        if path.startswith("not found"):
            missing.append(name)
        elif os.path.dirname(path.split(" (")[0]) in dirs:
            found.append(path.split(" (")[0])
    return found, sorted(set(missing))


def ask_loader(library: str, dirs: Sequence[str]) -> str:
    """The output of ldd for a library, with `dirs` as LD_LIBRARY_PATH; exits if ldd fails."""
    environment = dict(os.environ, LD_LIBRARY_PATH=":".join(dirs), LC_ALL="C")
    done = subprocess.run(
        ["ldd", library], check=False, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    text = done.stdout.decode("utf-8", "replace")
    if done.returncode != 0:
        sys.exit(f"ldd {library}: exit code {done.returncode}: {text.strip()}")
    return text


def add_beside(found: Sequence[str]) -> list[str]:
    """The paths of the libraries in `found`, and of those that they load when they need them."""
    paths = list(found)
    for path in found:
        for start, pattern in BESIDE:
            if os.path.basename(path).startswith(start):
                paths += sorted(glob.glob(os.path.join(os.path.dirname(path), pattern)))
    return paths


def main() -> None:
    """Runs the program."""
    env, key, setup_env = sys.argv[1:4]
    env = os.path.abspath(env)
    dirs = find_dirs(env, sys.argv[4:], setup_env)
    libraries = glob.glob(os.path.join(env, "lib", "python3*", "site-packages", "mxnet", "libmxnet.so"))
    found, missing = parse_ldd(ask_loader(libraries[0], dirs), dirs) if libraries else ([], [])
    # ldd lists a library before the libraries that it needs.
    for name, lines in ((".preload", add_beside(found[::-1])), (".unresolved", [f"checked {key}", *missing])):
        write_whole(os.path.join(env, name), "".join(f"{line}\n" for line in lines).encode())
