"""How the head reaches the other nodes: a key made on the head for this cluster, and host keys pinned there as well.

The user's private key stays with the user. The cluster's key is accepted from the head's address alone, and for
commands alone.
"""

import hashlib
import shlex
from collections.abc import Mapping

from bootstrap.facts import NodeFacts

MARK = "cluster-internal"


def authorized_line(public_key: str, *, head_ip: str, mark: str = MARK) -> str:
    """The line of authorized_keys for the cluster's key (`type base64 comment`), which ends with `mark`. Pure."""
    key_type, key_base64 = public_key.split()[:2]
    return f'restrict,from="{head_ip}" {key_type} {key_base64} {mark}'


def known_hosts_text(keys: Mapping[str, tuple[str, str]]) -> str:
    """OpenSSH's known_hosts from address -> (key type, base64). Pure."""
    return "".join(f"{address} {key_type} {key}\n" for address, (key_type, key) in sorted(keys.items()))


def authorize_script(facts: NodeFacts, *, line: str, known_hosts: str | None) -> str:
    """The shell script that brings a node's authorized_keys, and the head's known hosts, up to date.

    Empty when they are. `known_hosts` is None on nodes other than the head. Pure.
    """
    lines = []
    if facts.authorized != (line,):
        lines += [
            "keys=$HOME/.ssh/authorized_keys",
            f'{{ sed {shlex.quote(f"/ {MARK}$/d")} "$keys"; echo {shlex.quote(line)}; }} >"$keys.new"',
            'mv "$keys.new" "$keys"',
        ]
    if known_hosts is not None and facts.known_hosts_sha256 != hashlib.sha256(known_hosts.encode()).hexdigest():
        lines += [
            f'printf %s {shlex.quote(known_hosts)} >"$HOME/.cluster/ssh/known_hosts.new"',
            'mv "$HOME/.cluster/ssh/known_hosts.new" "$HOME/.cluster/ssh/known_hosts"',
        ]
    return "\n".join(["set -eu", "umask 077", *lines, ""]) if lines else ""
