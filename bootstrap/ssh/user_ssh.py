"""ssh to the user's own hosts, as `ssh HOST` does it: with the user's ssh_config, agent, keys and known hosts.

Fabric and paramiko connect. This module adds the features that they lack: Include; patterns, aliases and revoked keys
in known hosts; and the refusal of unknown host keys on jump hosts, too.
"""

import fnmatch
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import fabric
import paramiko
from paramiko.client import MissingHostKeyPolicy, SSHClient

from bootstrap.ssh.connection import NodeConnection, make_transport, notice_death
from bootstrap.ssh.explain import CONNECT_TIMEOUT_S, innermost, where
from bootstrap.ssh.host import Host, Spec
from bootstrap.ssh.keys import parse_host_key
from foundation.errors import ClusterError, ConnectError

SYSTEM_CONFIG = Path("/etc/ssh/ssh_config")
KNOWN_HOSTS = {
    "userknownhostsfile": "~/.ssh/known_hosts ~/.ssh/known_hosts2",
    "globalknownhostsfile": "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2",
}
"""The options for the files of known hosts, with OpenSSH's own defaults."""
DEEPEST_INCLUDE = 16
_INCLUDE = re.compile(r"\s*include[\s=]+(.+)", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Route:
    """The result of ssh_config for a host. proxied: the connection goes through another host or a command."""

    hostname: str
    user: str
    port: int
    proxied: bool


class UnknownHostKey(paramiko.SSHException):  # type: ignore[misc] # paramiko has no types
    """A host's key is not among the user's known hosts. hostname: the host's name in known_hosts."""

    def __init__(self, hostname: str, key: paramiko.PKey) -> None:
        super().__init__(f"the host key of {hostname} is not known")
        self.hostname = hostname
        self.key = key


class RefuseUnknown(MissingHostKeyPolicy):  # type: ignore[misc] # paramiko has no types
    """A policy of paramiko that refuses hosts whose key the user has not accepted, before anything is sent to them."""

    def missing_host_key(self, client: SSHClient, hostname: str, key: paramiko.PKey) -> None:
        """Refuses the host: raises UnknownHostKey."""
        del client
        raise UnknownHostKey(hostname, key)


def load_ssh_config(home: Path, *, system: Path = SYSTEM_CONFIG) -> paramiko.SSHConfig:
    """Loads the user's ssh_config, then the system's, with the files that they include. Raises ClusterError."""
    config = paramiko.SSHConfig()
    for path in (home / ".ssh" / "config", system):
        try:
            text = "\n".join(_included(path, folder=home / ".ssh" if path != system else system.parent))
            config.parse(text.splitlines())
        except (OSError, UnicodeDecodeError, paramiko.SSHException) as error:
            raise ClusterError(
                f"{path}: cannot be read: {error}", hint=f"ssh -F {shlex.quote(str(path))} -G x"
            ) from error
    return config


def _included(path: Path, *, folder: Path, depth: int = 0) -> Iterator[str]:
    """Yields the lines of a file, with each Include replaced by the lines of its files; none if there is no file."""
    if not path.is_file():
        return
    for line in path.read_text(encoding="utf-8").splitlines():
        include = _INCLUDE.fullmatch(line)
        if include is None or depth == DEEPEST_INCLUDE:
            yield line
            continue
        for pattern in shlex.split(include[1]):
            place = Path(pattern).expanduser()
            root = Path(place.anchor) if place.is_absolute() else folder
            for found in sorted(root.glob(str(place.relative_to(root) if place.is_absolute() else place))):
                yield from _included(found, folder=folder, depth=depth + 1)


def find_route(spec: Spec, config: paramiko.SSHConfig) -> Route:
    """Finds the route to a host. Raises ClusterError for an invalid ssh_config."""
    connection = _make_connection(spec, config)
    return Route(hostname=connection.host, user=connection.user, port=connection.port, proxied=bool(connection.gateway))


def find_known_keys(lines: Sequence[str], name: str) -> tuple[paramiko.PKey, ...]:
    """The keys for a name, "host" or "[host]:port", in lines of known_hosts, without revoked keys. Pure."""
    found, revoked = [], set()
    for line in lines:
        words = line.split()
        is_revoked = words[:1] == ["@revoked"]
        words = words[1:] if is_revoked else words
        if len(words) < 3 or words[0].startswith(("#", "@")) or not _is_named(name, words[0]):
            continue
        key = parse_host_key(words[1], words[2])
        if key is not None and is_revoked:
            revoked.add(key.asbytes())
        elif key is not None:
            found.append(key)
    return tuple(key for key in found if key.asbytes() not in revoked)


def _is_named(name: str, patterns: str) -> bool:
    """Whether the first word of a known_hosts line contains or matches a name, plain, hashed or as a pattern. Pure."""
    if patterns.startswith("|1|"):
        hashed: str = paramiko.HostKeys.hash_host(name, patterns)
        return hashed == patterns
    words = [word.lower() for word in patterns.split(",")]
    matches = [word for word in words if _fits(name.lower(), word.removeprefix("!"))]
    return bool(matches) and not any(word.startswith("!") for word in matches)


def _fits(name: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(name, pattern.replace("[", "[[]"))  # ssh has only * and ?


def connect(host: Host, *, spec: Spec, config: paramiko.SSHConfig) -> NodeConnection:
    """Connects as `ssh` does. Raises ClusterError, and ConnectError with the reason and the next command."""
    connection = _make_connection(spec, config)
    for hop in _hops(connection):
        _prepare(hop)
    try:
        connection.open()
    except (OSError, EOFError, paramiko.SSHException) as error:
        said, hint = explain(host, spec, error)
        raise ConnectError(said, hint=hint) from error
    finally:
        if not connection.is_connected:
            for hop in _hops(connection):
                hop.client.close()
    notice_death(connection.transport)
    return NodeConnection(host, connection)


def _make_connection(spec: Spec, config: paramiko.SSHConfig) -> fabric.Connection:
    try:
        return fabric.Connection(
            spec.host, user=spec.user, port=spec.port, config=fabric.Config(lazy=True, ssh_config=config)
        )
    except (ValueError, KeyError, paramiko.SSHException) as error:
        raise ClusterError(f"{spec.host}: your ssh_config is invalid: {error}", hint=f"ssh -G {spec.host}") from error


def _hops(connection: fabric.Connection) -> Iterator[fabric.Connection]:
    """Yields the connection, and then those that lead to it."""
    hop = connection
    while isinstance(hop, fabric.Connection):
        yield hop
        hop = hop.gateway


def _prepare(connection: fabric.Connection) -> None:
    """Has one hop use only the user's known hosts, keys and options."""
    options = connection.ssh_config
    name = known_name(connection.host, connection.port)
    alias = options.get("hostkeyalias", name)
    paths = [
        Path(word).expanduser()
        for key, default in KNOWN_HOSTS.items()
        for word in shlex.split(options.get(key, default))
    ]
    lines = [line for path in paths if path.is_file() for line in path.read_text("utf-8", "replace").splitlines()]
    connection.client.set_missing_host_key_policy(RefuseUnknown())  # Fabric's own policy adds unknown keys
    for key in find_known_keys(lines, alias):
        connection.client.get_host_keys().add(name, key.get_name(), key)
    connection.connect_timeout = CONNECT_TIMEOUT_S
    identities = [path for path in connection.connect_kwargs.get("key_filename", ()) if Path(path).is_file()]
    connection.connect_kwargs = {
        "key_filename": identities,
        "look_for_keys": options.get("identitiesonly", "no") != "yes",
        "allow_agent": options.get("identityagent", "") != "none",
        "banner_timeout": CONNECT_TIMEOUT_S,
        "auth_timeout": CONNECT_TIMEOUT_S,
        "transport_factory": make_transport,
    }


def known_name(host: str, port: int) -> str:
    """The name of a host in known_hosts. Pure."""
    return host if port == 22 else f"[{host}]:{port}"


def explain(host: Host, spec: Spec, error: BaseException) -> tuple[str, str]:
    """The reason why one of the user's own hosts cannot be reached, and the next command. Pure."""
    said, hint = _cause(spec, host, innermost(error))
    return f"{host.name} ({where(host)}): {said}", hint


def _cause(spec: Spec, host: Host, error: BaseException) -> tuple[str, str]:  # noqa: PLR0911 - one for each cause
    command = spec.command
    again = f"{command} true must work without a prompt; then run the command again"
    match error:
        case UnknownHostKey():
            is_its = error.hostname == known_name(host.address, host.port)
            whose = "its host key" if is_its else f"the host key of {error.hostname}, on the way to it,"
            return (
                f"{whose} is not in your known_hosts; nothing was sent to it\n"
                f"  presented: {error.key.get_name()} {error.key.fingerprint}"
            ), f"{command}, once, to check and accept its key; then run the command again"
        case paramiko.BadHostKeyException():
            return (
                f"the host key of {error.hostname} differs from the one in your known_hosts, so this may not be the "
                f"machine that you know; nothing was sent to it\n"
                f"  known:     {error.expected_key.get_name()} {error.expected_key.fingerprint}\n"
                f"  presented: {error.key.get_name()} {error.key.fingerprint}"
            ), f"only if you know why: ssh-keygen -R {shlex.quote(error.hostname)}, then {command}, once"
        case paramiko.PasswordRequiredException():
            return "your key for it has a passphrase, and no agent has the key", f"ssh-add, with that key; then {again}"
        case paramiko.AuthenticationException():
            return f"ssh answers, but accepts none of your keys for user {host.user}", again
        case TimeoutError():
            return f"no answer on port {host.port} within {CONNECT_TIMEOUT_S} s", again
        case ConnectionRefusedError():
            return f"connection refused on port {host.port}", again
    words = error.strerror if isinstance(error, OSError) else str(error)
    return f"ssh failed: {words or type(error).__name__}", again
