"""ssh to the user's own hosts, as `ssh HOST` does it: with the user's ssh_config, agent, keys and known hosts.

Fabric and paramiko connect. OpenSSH's own programs read ssh_config (`ssh -G`) and known hosts (`ssh-keygen -F`).
Unknown host keys are refused, on jump hosts, too.
"""

import os
import pwd
import re
import shlex
import socket
import subprocess
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import fabric
import paramiko
from msgspec import Struct
from msgspec.structs import replace
from paramiko.client import MissingHostKeyPolicy, SSHClient

from bootstrap.ssh.connection import LOGIN_OPTIONS, NodeConnection, find_hops, open_connection
from bootstrap.ssh.explain import CONNECT_TIMEOUT_S, innermost, is_refused_key, where
from bootstrap.ssh.host import Host, Spec, parse_spec
from bootstrap.ssh.keys import parse_host_key
from bootstrap.ssh.tunnel import explain_missing
from foundation.errors import ClusterError
from foundation.user_folders import home_folder

OPTIONS = frozenset(
    (
        *("hostname", "user", "port", "identityfile", "identitiesonly", "identityagent"),
        *("proxyjump", "proxycommand", "hostkeyalias", "userknownhostsfile", "globalknownhostsfile"),
    )
)
"""The options of OpenSSH that decide how we connect."""
_KEY_ALONE = ("ssh", "-o", "PreferredAuthentications=publickey", "-o", "ControlPath=none")
"""How ssh logs in with a key alone: not with a password, Kerberos, a second factor or a shared connection."""
ANSWER_TIMEOUT_S = 20.0  # `Match exec` runs the user's commands


class Route(Struct, frozen=True, kw_only=True):
    """The result of ssh_config for a host. proxied: the connection goes through another host or a command."""

    hostname: str
    user: str
    port: int
    proxied: bool


class UnknownHostKey(paramiko.SSHException):  # type: ignore[misc] # paramiko has no types
    """A host's key is not among the user's known hosts."""

    def __init__(self, hostname: str, key: paramiko.PKey) -> None:
        super().__init__(f"the host key of {hostname} is not known")
        self.key = key


class RefuseUnknown(MissingHostKeyPolicy):  # type: ignore[misc] # paramiko has no types
    """A policy of paramiko that refuses hosts whose key the user has not accepted, before anything is sent to them."""

    def missing_host_key(self, client: SSHClient, hostname: str, key: paramiko.PKey) -> None:
        """Refuses the host: raises UnknownHostKey."""
        del client
        raise UnknownHostKey(hostname, key)


class Agent(paramiko.agent.AgentSSH):  # type: ignore[misc] # paramiko has no types
    """The user's agent, which gives its keys in ssh's order: a host refuses a client after some wrong ones.

    path: its socket. identities: the paths of IdentityFile, whose keys come first. alone: the value of IdentitiesOnly.
    """

    def __init__(self, path: str, identities: Sequence[str], *, alone: bool) -> None:
        super().__init__()
        self._path, self._identities, self._alone = path, identities, alone

    def get_keys(self) -> tuple[paramiko.AgentKey, ...]:
        """The keys, for paramiko."""
        if self._conn is None:
            sock = socket.socket(socket.AF_UNIX)
            with suppress(OSError, paramiko.SSHException):  # without it, there are still the user's files of keys
                sock.connect(self._path)
                self._connect(sock)
        known = find_fingerprints(self._identities) if self._keys else set()
        others = [] if self._alone else [key for key in self._keys if key.fingerprint not in known]
        return (*(key for key in self._keys if key.fingerprint in known), *others)

    def close(self) -> None:
        """Closes the connection to it."""
        self._close()


def find_fingerprints(identities: Sequence[str]) -> set[str]:
    """The fingerprints of keys, whose private or public halves are at these paths. Raises ClusterError."""
    files = [next(filter(os.path.isfile, (f"{path}.pub", path)), None) for path in identities]
    shown = [_run(["ssh-keygen", "-l", "-f", path]).stdout.split() for path in files if path is not None]
    return {words[1] for words in shown if len(words) > 1}


def read_ssh_config(spec: Spec) -> paramiko.SSHConfig:
    """Returns what `ssh -G` says about a host, and about those that lead to it. Raises ClusterError."""
    config, todo, seen = paramiko.SSHConfig(), [spec], set()
    while todo:
        one = todo.pop()
        if one.host in seen:
            continue
        seen.add(one.host)
        lines = [line for line in _ask_ssh(one).splitlines() if line.partition(" ")[0] in OPTIONS]
        jumps = next((line.partition(" ")[2] for line in lines if line.startswith("proxyjump ")), "").split(",")
        # ssh visits the jump hosts in their order (ssh_config(5)), Fabric in the opposite one.
        turned = [f"proxyjump {','.join(reversed(jumps))}" if line.startswith("proxyjump ") else line for line in lines]
        config.parse([f"Host {one.host}", *turned])
        todo += filter(None, map(parse_spec, jumps))
    return config


def _ask_ssh(spec: Spec) -> str:
    """Returns the output of `ssh -G` for a host. $HOME is the home folder, although ssh itself takes the account's."""
    home, account = home_folder(), Path(pwd.getpwuid(os.getuid()).pw_dir)
    words = ["ssh", "-G"]
    if home != account:
        own = home / ".ssh" / "config"
        words += ["-F", str(own) if own.exists() else "none"]
    if spec.user:
        words += ["-l", spec.user]
    if spec.port:
        words += ["-p", str(spec.port)]
    words += ["--", spec.host]
    done = _run(words)
    if done.returncode != 0:
        why = done.stderr.strip().replace("\n", "; ") or "no output"
        raise ClusterError(f"{spec.host}: your ssh_config is invalid: {why}", hint=f"ssh -G {spec.host}")
    return done.stdout.replace(f"{account}/.ssh/", f"{home}/.ssh/").replace(" ~/", f" {home}/")


def _run(words: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    """Runs one of OpenSSH's programs. Raises ClusterError if it is missing or does not end."""
    try:
        return subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=ANSWER_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise ClusterError(f"{shlex.join(words)} did not end within {ANSWER_TIMEOUT_S:.0f} s") from error
    except FileNotFoundError:
        raise explain_missing(words[0]) from None


def find_route(spec: Spec) -> Route:
    """Finds the route to a host. Raises ClusterError for an invalid ssh_config."""
    connection = _make_connection(spec)
    return Route(hostname=connection.host, user=connection.user, port=connection.port, proxied=bool(connection.gateway))


def find_known_keys(paths: Iterable[Path], name: str) -> tuple[paramiko.PKey, ...]:
    """The keys that `ssh-keygen -F` finds for a name, "host" or "[host]:port", without those that are revoked.

    paths: files of known hosts, of which some may not exist. Raises ClusterError.
    """
    found, revoked = [], set()
    for path in filter(Path.is_file, paths):
        for line in _run(["ssh-keygen", "-F", name, "-f", str(path)]).stdout.splitlines():
            words = line.split()
            is_revoked = words[:1] == ["@revoked"]
            words = words[1:] if is_revoked else words
            key = parse_host_key(words[1], words[2]) if len(words) > 2 and words[0][0] not in "#@" else None
            if key is not None and is_revoked:
                revoked.add(key.asbytes())
            elif key is not None:
                found.append(key)
    return tuple(key for key in found if key.asbytes() not in revoked)


def connect(host: Host, *, spec: Spec) -> NodeConnection:
    """Connects as `ssh` does. Raises ClusterError, and ConnectError with the reason and the next command."""
    connection = _make_connection(spec)
    hops = [*find_hops(connection)]
    for hop in hops:
        _prepare(hop)

    def explain_hop(error: BaseException) -> tuple[str, str]:
        failed = next((hop for hop in reversed(hops) if not hop.is_connected), connection)
        if failed is connection:
            return explain(host, spec, error)
        name, port = failed.original_host, failed.port
        jump = replace(host, name=name, address=failed.host, user=failed.user, port=port, spec=name)
        way = Spec(host=name, user=failed.user, port=port if port != 22 else None)
        return explain(jump, way, error, towards=f", on the way to {host.name}")

    return open_connection(host, connection, explain_hop)


class _Config(fabric.Config):  # type: ignore[misc] # Fabric has no types
    """Fabric's settings, which it copies for each jump host: not even then from its own files, as ~/.fabric.yaml."""

    def load_base_conf_files(self) -> None:
        pass


def _make_connection(spec: Spec) -> fabric.Connection:
    config = _Config(lazy=True, ssh_config=read_ssh_config(spec))
    try:
        return fabric.Connection(spec.host, user=spec.user, port=spec.port, config=config)
    except (ValueError, KeyError, paramiko.SSHException) as error:
        raise ClusterError(f"{spec.host}: your ssh_config is invalid: {error}", hint=f"ssh -G {spec.host}") from error


def _prepare(connection: fabric.Connection) -> None:
    """Has one hop use only the user's known hosts, keys and options."""
    options = connection.ssh_config
    name = known_name(connection.host, connection.port)
    files = "".join(f" {options.get(key, '')}" for key in ("userknownhostsfile", "globalknownhostsfile"))
    # `ssh -G` does not quote the paths, which are absolute and may contain blanks.
    paths, alias = [Path(path) for path in re.split(" +(?=/)", files)], options.get("hostkeyalias")
    connection.client.set_missing_host_key_policy(RefuseUnknown())  # Fabric's own policy adds unknown keys
    for key in find_known_keys(paths, alias or name):
        connection.client.get_host_keys().add(name, key.get_name(), key)
    connection.connect_timeout = CONNECT_TIMEOUT_S
    # paramiko leaves the "%%" of `ssh -G` as it is.
    identities = [path.replace("%%", "%") for path in connection.connect_kwargs.get("key_filename", ())]
    agent = options.get("identityagent", "SSH_AUTH_SOCK").removeprefix("$")
    path = agent if agent.startswith("/") else os.environ.get(agent, "")
    alone = options.get("identitiesonly", "no") == "yes"
    connection.client._agent = Agent(path, identities, alone=alone)  # noqa: SLF001 - it takes no other
    keys = [path for path in identities if Path(path).is_file()]
    connection.connect_kwargs = {
        "key_filename": keys,
        "look_for_keys": not (keys or alone),  # `ssh -G` names the default ones, too: none is tried twice
        "allow_agent": agent != "none",
        **LOGIN_OPTIONS,
    }


def known_name(host: str, port: int) -> str:
    """The name of a host in known_hosts. Pure."""
    return host if port == 22 else f"[{host}]:{port}"


def explain(host: Host, spec: Spec, error: BaseException, *, towards: str = "") -> tuple[str, str]:
    """The reason why one of the user's own hosts cannot be reached, and the next command. Pure.

    towards: of a jump host, where it leads.
    """
    message, hint = _cause(spec, host, innermost(error))
    return f"{host.name} ({where(host)}){towards}: {message}", hint


def _cause(spec: Spec, host: Host, error: BaseException) -> tuple[str, str]:
    command = spec.command
    again = "then run the command again"
    match error:
        case UnknownHostKey():
            return (
                "its host key is not in your known_hosts; nothing was sent to it\n"
                f"  presented: {error.key.get_name()} {error.key.fingerprint}"
            ), (
                f"{command}, once, to check and accept its key; {again}. If ssh asks nothing and keeps no key: remove "
                f"UserKnownHostsFile from your ssh_config, or add the line of ssh-keyscan -p {host.port} {host.address}"
            )
        case paramiko.BadHostKeyException():
            return (
                f"the host key of {error.hostname} differs from the one in your known_hosts, so this may not be the "
                f"machine that you know; nothing was sent to it\n"
                f"  known:     {error.expected_key.get_name()} {error.expected_key.fingerprint}\n"
                f"  presented: {error.key.get_name()} {error.key.fingerprint}"
            ), f"only if you know why: ssh-keygen -R {shlex.quote(error.hostname)}, then {command}, once"
        case paramiko.PasswordRequiredException():
            reason = "your key for it has a passphrase, and no agent has the key"
            return reason, f"ssh-add, with that key; then {command} true must work without a prompt; {again}"
        case paramiko.AuthenticationException() if is_refused_key(error):
            reason = f"ssh answers, but accepts none of your keys for user {host.user}"
            return reason, f"{shlex.join([*_KEY_ALONE, *spec.words[1:]])} true must work without a prompt; {again}"
        case TimeoutError():
            reason = f"no answer on port {host.port} within {CONNECT_TIMEOUT_S} s"
        case paramiko.ChannelException():
            reason = f"its jump host does not reach it: {error.text}"
        case _:
            words = error.strerror if isinstance(error, OSError) else str(error)
            reason = f"ssh failed: {words or type(error).__name__}"
    return reason, f"{command} true must work without a prompt, or take {spec.host} out of the list of hosts; {again}"
