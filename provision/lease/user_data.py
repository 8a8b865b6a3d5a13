"""The nodes' user data. At every boot, it makes sshd end dead sessions, and arms the lease. Pure.

A node that the head launched also lets the head log in. The head then sets it up.
"""

import gzip
import shlex
from functools import lru_cache
from importlib.resources import files

from provision.lease.terms import Lease, render_lease

MAX_BYTES = 16384
"""The limit before base64 (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-add-user-data.html)."""
PROGRAM = "/run/cluster/lease.sh"

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

# First, and from memory: the rest must not keep it from starting, and /run needs no space on the disk.
_LEASE = f"""
# Ends this node at the end of its cluster's lease.
mkdir -p /run/cluster && printf '%s' "$program" >{PROGRAM}
sh {PROGRAM} boot "$lease" "$cluster"
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
def render_user_data(lease: Lease | None, *, cluster: str, user: str = "", authorized: str = "") -> bytes:
    """Returns the user data of a cluster's nodes: at most MAX_BYTES. lease: None if it will be set later.

    authorized: a line to add to the authorized_keys of `user`, unless a line with the same comment exists. The result
    is compressed; cloud-init decompresses it:
    https://cloudinit.readthedocs.io/en/latest/explanation/format.html#gzip-compressed-content
    """
    program = files("node").joinpath("lease.sh").read_text("utf-8")
    values = {"cluster": cluster, "lease": "" if lease is None else render_lease(lease), "program": program}
    let_in = ""
    if authorized:
        let_in = f"user={shlex.quote(user)}\nauthorized={shlex.quote(authorized)}\n{_LET_IN}"
    head = "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())
    return gzip.compress(f"#cloud-boothook\n#!/bin/sh\n{head}{_LEASE}{let_in}{SSHD_SETTINGS}".encode(), mtime=0)
