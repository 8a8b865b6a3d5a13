"""The nodes' user data. At every boot, it makes sshd end dead sessions, and arms the lease. Pure.

A node that the head launched also lets the head log in. The head then sets it up.
"""

from __future__ import annotations

import ast
import gzip
import json
import shlex
import threading
from functools import cache, lru_cache
from importlib.resources import files

from node.lease.terms import Lease, render_lease

MAX_BYTES = 16384
"""The limit before base64 (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-add-user-data.html)."""
PROGRAM = "/run/cluster/lease.py"
# Each module imports only modules before it.
_MODULES = (
    "system", "terms", "activity", "state", "metadata", "ec2",
    "neighbors", "peers", "warn", "control", "start", "agent",
)  # fmt: skip
# Runs the modules as if they were in their package.
_LOADER = """\
import sys, types
def make(name):
    module = sys.modules[name] = types.ModuleType(name)
    module.__path__ = []
    parent, _, last = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], last, module)
    return module
for name in ("node", "node.lease"):
    make(name)
for name, source in SOURCES:
    module = make("node.lease." + name)
    exec(compile(source, name, "exec"), module.__dict__)
sys.exit(module.main())
"""

# A boothook. cloud-init runs it at every boot, before sshd starts if the image has that order:
# https://cloudinit.readthedocs.io/en/latest/explanation/format.html#cloud-boothook
SSHD_SETTINGS = r"""
# Makes sshd end the sessions of dead clients. A node that was frozen or cut off does not see its client's end, and with
# the kernel's own keepalive the session then continues for two hours.
config=/etc/ssh/sshd_config
settings='# Written by cluster at boot.
ClientAliveInterval 15
ClientAliveCountMax 4'
# sshd uses the first value that it finds.
if grep -Eqi '^ *include .*/sshd_config\.d/' $config; then
    file=$config.d/00-cluster.conf
    [ "$(cat $file 2>/dev/null)" != "$settings" ] || exit 0
    mkdir -p $config.d
    echo "$settings" >$file
else
    ! grep -q '^# Written by cluster' $config || exit 0
    cp -p $config $config.new && { echo "$settings"; cat $config; } >$config.new && mv $config.new $config
fi
if [ -d /run/systemd/system ]; then
    # Without waiting: sshd may be about to start after this script.
    for service in ssh sshd; do systemctl --no-block try-reload-or-restart $service.service; done 2>/dev/null
elif [ -s /run/sshd.pid ]; then
    kill -HUP "$(cat /run/sshd.pid)"
fi
exit 0
"""

# First, and from memory: the script below must not keep it from starting. /run and /dev/shm need no space on the disk.
_LEASE = """
# Ends this node at the end of its cluster's lease (node/lease/agent.py).
for folder in /run/cluster /dev/shm/cluster; do
    mkdir -p $folder && printf '%s' "$program" >$folder/lease.py && break
done
for python in python3 /usr/libexec/platform-python; do
    command -v $python >/dev/null || continue
    $python -Es $folder/lease.py boot "$lease" "$cluster" "$endpoint" && armed=yes && break
done
until=$(echo " $lease" | sed -n 's/.* until=\\([^ ]*\\).*/\\1/p')
if [ -z "$armed" ] && [ -n "$until" ]; then  # without Python, the deadline alone
    (while [ "$(date +%s)" -lt "$(date -d "$until" +%s)" ]; do sleep 10; done; shutdown -P now) >/dev/null 2>&1 &
fi
"""


# At the first boot only: later, the set-up has written such a line, perhaps for another head. In the background, since
# cloud-init creates the user, and writes the key of the launch, after this script.
_LET_IN = r"""
# Lets the head log in, which launched this node.
(
    for attempt in $(seq 300); do
        keys=$(getent passwd "$user" | cut -d: -f6)/.ssh/authorized_keys
        [ ! -s "$keys" ] || break
        sleep 1
    done
    grep -q " ${authorized##* }\$" "$keys" || echo "$authorized" >>"$keys"
) >/dev/null 2>&1 &
"""


@lru_cache(maxsize=16)
def render_user_data(
    lease: Lease | None, *, cluster: str, endpoint: str, user: str = "", authorized: str = ""
) -> bytes:
    """Returns the user data of a cluster's nodes: at most MAX_BYTES. lease: None if it will be set later.

    endpoint: the URL of EC2. authorized: a line to add to the authorized_keys of `user`, unless a line with the same
    comment exists. The result is compressed; cloud-init decompresses it:
    https://cloudinit.readthedocs.io/en/latest/explanation/format.html#gzip-compressed-content
    """
    text = "" if lease is None else render_lease(lease)
    values = {"cluster": cluster, "lease": text, "endpoint": endpoint}
    head = "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())
    let_in = ""
    if authorized:
        let_in = f"user={shlex.quote(user)}\nauthorized={shlex.quote(authorized)}\n{_LET_IN}"
    script = f"#cloud-boothook\n#!/bin/sh\n{head}program='{render_program()}'\n{_LEASE}{let_in}{SSHD_SETTINGS}"
    return gzip.compress(script.encode(), mtime=0)


# Python 3.11 may raise SystemError when several threads parse: https://github.com/python/cpython/issues/106905
_PARSING = threading.Lock()


def render_program() -> str:
    """Returns the node's program as one file without single quotes. It is the same in every process."""
    with _PARSING:
        return _render_program()


@cache
def _render_program() -> str:
    folder = files("node").joinpath("lease")
    sources = [(name, shorten(folder.joinpath(f"{name}.py").read_text("utf-8"))) for name in _MODULES]
    return _LOADER.replace("SOURCES", json.dumps(sources).replace("'", "\\u0027"))


def shorten(source: str) -> str:
    """Returns a module without comments, docstrings and annotations of functions: user data has little space."""
    return ast.unparse(_Shortener().visit(ast.parse(source)))


class _Shortener(ast.NodeTransformer):
    """Removes annotations of functions. Annotations in a class stay: they are the fields of a NamedTuple."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        return None if isinstance(node.value, ast.Constant) else node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        self.generic_visit(node)
        node.body = node.body or [ast.Pass()]
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self.generic_visit(node)
        node.returns = None
        for one in (*node.args.args, *node.args.kwonlyargs, node.args.vararg):
            if one is not None:
                one.annotation = None
        node.body = [_without_annotation(one) for one in node.body] or [ast.Pass()]
        return node


def _without_annotation(one: ast.stmt) -> ast.stmt:
    if isinstance(one, ast.AnnAssign) and one.value is not None:
        return ast.copy_location(ast.Assign(targets=[one.target], value=one.value), one)
    return one
