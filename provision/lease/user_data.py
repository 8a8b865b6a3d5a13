"""The nodes' user data: at every boot, it makes sshd end dead sessions, and arms the lease. Pure.

A node that the head launched lets the head log in, which then sets it up.
"""

from __future__ import annotations

import base64
import io
import json
import shlex
import tokenize
import zlib
from functools import cache
from importlib.resources import files

from provision.lease.node.terms import Lease, render_lease

MAX_BYTES = 16384
"""Of user data, before base64 (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-add-user-data.html)."""
PROGRAM = "/run/cluster/lease.py"
_MODULES = ("terms", "activity", "agent")  # each imports only those before it
_NOTHING = frozenset({tokenize.COMMENT, tokenize.NL})
# Runs the modules as if they were in their package.
_LOADER = """\
import base64, json, sys, types, zlib
def make(name):
    module = sys.modules[name] = types.ModuleType(name)
    module.__path__ = []
    parent, _, last = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], last, module)
    return module
for name in ("provision", "provision.lease", "provision.lease.node"):
    make(name)
for name, source in json.loads(zlib.decompress(base64.b85decode("PACKED")).decode()):
    module = make("provision.lease.node." + name)
    exec(compile(source, name, "exec"), module.__dict__)
sys.exit(module.main())
"""

# A boothook, which cloud-init runs at every boot, before sshd starts if the image orders them so:
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

# First, and from memory: nothing below must keep it from starting. /run and /dev/shm need no space on the disk.
_LEASE = """
# Ends this node at the end of its cluster's lease (provision/lease/node/agent.py).
for folder in /run/cluster /dev/shm/cluster; do
    mkdir -p $folder && echo "$program" >$folder/lease.py && break
done
for python in python3 /usr/libexec/platform-python; do
    command -v $python >/dev/null && $python -Es $folder/lease.py boot "$lease" "$cluster" && armed=yes && break
done
until=$(echo " $lease" | sed -n 's/.* until=\\([^ ]*\\).*/\\1/p')
if [ -z "$armed" ] && [ -n "$until" ]; then  # without Python, the deadline alone
    (while [ "$(date +%s)" -lt "$(date -d "$until" +%s)" ]; do sleep 10; done; shutdown -P now) >/dev/null 2>&1 &
fi
"""


# At the first boot: later, the set-up has written such a line, perhaps of another head. In the background, since
# cloud-init makes the user, and writes the key of the launch, after this script.
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


def render_user_data(lease: Lease | None, *, cluster: str, user: str = "", authorized: str = "") -> str:
    """The user data of a cluster's nodes: at most MAX_BYTES. lease: None for none yet; it can be set later.

    authorized: a line that is added to the authorized_keys of `user`, unless a line with the same comment is there.
    """
    text = "" if lease is None else render_lease(lease)
    head = f"#cloud-boothook\n#!/bin/sh\ncluster={shlex.quote(cluster)}\nlease={shlex.quote(text)}\n"
    let_in = ""
    if authorized:
        let_in = f"user={shlex.quote(user)}\nauthorized={shlex.quote(authorized)}\n{_LET_IN}"
    return f"{head}program='{render_program()}'\n{_LEASE}{let_in}{SSHD_SETTINGS}"


@cache
def render_program() -> str:
    """The node's program as one file, which has neither quotes nor comments: the same in every process.

    It is packed, since user data has little space.
    """
    folder = files("provision").joinpath("lease", "node")
    sources = [(name, _shorten(folder.joinpath(f"{name}.py").read_text("utf-8"))) for name in _MODULES]
    packed = base64.b85encode(zlib.compress(json.dumps(sources).encode(), 9)).decode("ascii")
    return _LOADER.replace("PACKED", packed)


def _shorten(source: str) -> str:
    """The source without comments, docstrings and empty lines."""
    lines = source.splitlines()
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    for position, token in enumerate(tokens):
        (first, column), (last, _) = token.start, token.end
        if token.type == tokenize.COMMENT:
            lines[first - 1] = lines[first - 1][:column].rstrip()
        elif token.type == tokenize.STRING and tokens[position + 1].type == tokenize.NEWLINE:
            before = next((one.type for one in reversed(tokens[:position]) if one.type not in _NOTHING), None)
            if before in {None, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}:  # a statement of its own
                lines[first - 1 : last] = [f"{lines[first - 1][:column]}0", *[""] * (last - first)]
    return "\n".join(line for line in lines if line.strip())
