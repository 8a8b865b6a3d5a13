"""The variables of the users' programs on a node: those of a login, and those that set-up commands exported.

`exec`, `ssh` and jobs have the same variables of a login. run_setup.py stores the exports. As a program, it prints
those of the commands with a digest, as lines of a shell: a script evaluates them.
"""

import json
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

_NAMES = ("HOME", "USER", "LOGNAME", "SHELL", "PATH", "LANG", "TZ", "TMPDIR")
_PROXY = re.compile("[A-Za-z]+_(proxy|PROXY)")
_OTHERS = re.compile("LC_[A-Z]+|SSL_CERT_(FILE|DIR)")
_ASSIGNMENT = re.compile(r"^\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)=", re.MULTILINE)
# The instance metadata service is at the second address.
_NEAR = ("localhost", "127.0.0.1", "169.254.169.254")


def of_login(environ: Mapping[str, str], file: str = "/etc/environment") -> dict[str, str]:
    """Those of a login's variables that a job keeps. file: what it sets, for every login, is kept too (pam_env(8))."""
    try:
        with open(file, encoding="utf-8", errors="replace") as stream:
            of_all_logins = set(_ASSIGNMENT.findall(stream.read()))
    except OSError:
        of_all_logins = set()
    return {
        name: value
        for name, value in environ.items()
        if name in _NAMES or name in of_all_logins or _OTHERS.fullmatch(name) or _PROXY.fullmatch(name)
    }


def find_proxies(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that name a proxy, and the hosts that are reached without one. Pure."""
    return {name: value for name, value in environ.items() if _PROXY.fullmatch(name)}


def reach_near(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables, with this host and its metadata service in NO_PROXY where a proxy is set. Pure."""
    if not any(name.lower() != "no_proxy" for name in find_proxies(environ)):
        return dict(environ)
    words = [word.strip() for name in ("no_proxy", "NO_PROXY") for word in environ.get(name, "").split(",")]
    value = ",".join(dict.fromkeys(word for word in (*words, *_NEAR) if word))
    return dict(environ, NO_PROXY=value, no_proxy=value)


def read(digest: str) -> dict[str, Any]:
    """Reads the changes that the commands of a digest made. Raises OSError, ValueError."""
    path = os.path.join(os.path.expanduser("~"), ".cluster", "setup", os.uname().nodename, f"{digest}.env")
    with open(path, encoding="utf-8") as stream:
        changes: dict[str, Any] = json.load(stream)
    return changes


def merge(environment: Mapping[str, str], changes: Mapping[str, Any]) -> dict[str, str]:
    """The environment with the changes. Pure.

    In lists of paths, new entries come before and after those of `environment`, which stay.
    """
    merged = {name: value for name, value in environment.items() if name not in changes["unset"]}
    merged.update(changes["set"])
    for name, words in changes["prepend"].items():
        merged[name] = ":".join([*words, *_words(merged, name, words)])
    for name, words in changes["append"].items():
        merged[name] = ":".join([*_words(merged, name, words), *words])
    return merged


def _words(environment: Mapping[str, str], name: str, besides: Sequence[str]) -> list[str]:
    return [word for word in environment.get(name, "").split(":") if word and word not in besides]


def main() -> None:
    """Prints the exports of the commands whose digest is the argument, unless this process has them."""
    for name, value in sorted(merge(os.environ, read(sys.argv[1])).items()):
        if name.isidentifier() and os.environ.get(name) != value:
            print(f"export {name}={shlex.quote(value)}")
