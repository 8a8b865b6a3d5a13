"""What went wrong on the way to a node, in words: the cause, and the next command. All of it is pure."""

import errno
import re
import shlex
import socket
from collections.abc import Sequence
from pathlib import Path

import paramiko

from bootstrap.first_contact import UnverifiedHostKey
from bootstrap.host import Host, Output
from bootstrap.image_users import Probe, find_other_user
from provision.errors import NodeCommandError

CONNECT_TIMEOUT_S = 10
LAST_LINES = 10
NO_EXIT_CODE = -1  # paramiko's, for a command that a signal ended, and for one whose connection was lost
_BOOT_ENDS = re.compile(r"\blogin:|Cloud-init v\. \S+ finished at")
"""getty's prompt, and the last line of cloud-init."""
_SILENT = ("Error reading SSH protocol banner", "No existing session")
"""paramiko's words for a port that takes a connection and then does not speak ssh in time."""
NO_ANSWER = "no answer while logging in"
_UNANSWERED = ("Authentication timeout.", "Authentication failed: transport shut down or saw EOF")
"""paramiko's words for a login that was neither accepted nor refused."""


def is_unanswered(error: BaseException) -> bool:
    """Whether what paramiko calls a failed authentication is none: nobody has said yes or no to the key. Pure."""
    return type(error) is paramiko.AuthenticationException and str(error) in _UNANSWERED


def may_be_booting(error: BaseException | None) -> bool:
    """Whether a connection failed in a way that a node's boot explains. Pure."""
    if isinstance(error, paramiko.BadHostKeyException) or (isinstance(error, UnverifiedHostKey) and error.final):
        return False
    return isinstance(error, OSError | EOFError | paramiko.SSHException)


def explain(host: Host, error: BaseException) -> str:
    """Say in words why a connection failed. Pure."""
    return f"{host.name} ({where(host)}): {_cause(host, _innermost(error))}"


def where(host: Host) -> str:
    """Which machine a host is, as messages have it. Pure."""
    if not host.spec:
        return f"{host.instance_id}, {host.user}@{host.address}"
    return f"{host.user}@{host.address}" + (f" port {host.port}" if host.port != 22 else "")


def _innermost(error: BaseException) -> BaseException:
    if isinstance(error, paramiko.ssh_exception.NoValidConnectionsError) and error.errors:
        cause: BaseException = next(iter(error.errors.values()))
        return cause
    return error


def _cause(host: Host, error: BaseException) -> str:  # noqa: PLR0911 - a sentence for each cause
    match error:
        case paramiko.BadHostKeyException():
            return (
                "its host key has changed, so this may not be the machine that was launched.\n"
                f"  pinned:    {error.expected_key.get_name()} {error.expected_key.fingerprint}\n"
                f"  presented: {error.key.get_name()} {error.key.fingerprint}"
            )
        case UnverifiedHostKey():
            return _explain_unverified(host, error)
        case paramiko.BadAuthenticationType() if "publickey" not in error.allowed_types:
            return f"its sshd accepts no keys, only: {', '.join(error.allowed_types)}"
        case paramiko.AuthenticationException():
            return f"ssh answers, but does not accept the cluster's key for user {host.user}"
        case TimeoutError() | socket.timeout():
            return f"no answer on port 22 within {CONNECT_TIMEOUT_S} s; does the security group let you in?"
        case paramiko.SSHException() if str(error).startswith(_SILENT):
            return (
                f"port 22 takes connections, but no sshd answers there within {CONNECT_TIMEOUT_S} s: the host hangs, "
                "or its sshd turns connections away"
            )
    return _cause_by_number(getattr(error, "errno", None)) or f"ssh failed: {str(error) or type(error).__name__}"


def _cause_by_number(number: int | None) -> str | None:
    if number == errno.ECONNREFUSED:
        return "connection refused on port 22: the host is there, but its sshd is not"
    if number in {errno.EHOSTUNREACH, errno.ENETUNREACH}:
        return "there is no route to that address"
    if number in {errno.EPERM, errno.EACCES}:
        return "this machine's own firewall forbids connections to that address"
    return None


def _explain_unverified(host: Host, error: UnverifiedHostKey) -> str:
    presented = f"  presented: {error.key.get_name()} {error.key.fingerprint}"
    if error.shown:
        return (
            "its host key is none of those that the instance's console shows, so this may not be the machine that "
            f"was launched. Nothing was sent to it.\n{presented}\n  console:   "
            + "\n             ".join(sorted(error.shown))
        )
    return (
        "its host key cannot be verified: the instance's console shows no host keys' fingerprints. It is still "
        "booting, or its image's cloud-init does not print them, or it did so too long ago (it does at the first boot "
        "alone, and EC2 keeps 64 KB). Nothing was sent to it.\n"
        f"{presented}\n  its line:  {host.instance_id} {error.key.get_name()} {error.key.get_base64()}"
    )


def next_step(host: Host, error: BaseException) -> str:
    """The command to run after a connection failed. Pure."""
    error = _innermost(error)
    number = getattr(error, "errno", None)
    if isinstance(error, UnverifiedHostKey) and not error.shown:
        public = f"/etc/ssh/ssh_host_{error.key.algorithm_name.lower()}_key.pub"
        return (
            "the same command in a minute; if that does not help, compare what was presented with the node's own "
            f"(on EC2's serial console: ssh-keygen -lf {public}), and if it is the same add its line to "
            f"{shlex.quote(str(error.pins_path))}"
        )
    if isinstance(error, paramiko.BadHostKeyException | UnverifiedHostKey):
        return "cluster down, then cluster up, unless you know why the key is another one"
    if isinstance(error, TimeoutError):
        return "cluster allow, if your address is another one than at `cluster up`; else cluster status"
    if number in {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EPERM, errno.EACCES}:
        return "look at this machine's network, VPN and firewall; [provision] ssh_address says which address is used"
    if number == errno.ECONNREFUSED or (isinstance(error, paramiko.SSHException) and str(error).startswith(_SILENT)):
        return f"cluster status; a reboot starts sshd anew: aws ec2 reboot-instances --instance-ids {host.instance_id}"
    return "cluster status"


def explain_refused_key(host: Host, probe: Probe, *, key: paramiko.PKey, path: Path) -> tuple[str, str]:
    """Why a node does not accept the cluster's key from the configured user, and what to do about it. Pure."""
    refused = (
        f"{host.name} ({host.instance_id}, {host.address}): ssh answers, but does not accept the cluster's key for "
    )
    if probe.accepted is not None:
        told = f"{refused}user {host.user}, while it does for {probe.accepted}: that is the image's user"
        return told, f'set [provision] user = "{probe.accepted}" in cluster.toml'
    others = "nor for any user that images usually have" if probe.complete else "others could not be tried to the end"
    told = (
        f"{refused}user {host.user}, {others}: ~{host.user}/.ssh/authorized_keys on the node does not have it (any "
        "more), cloud-init has not finished there, or the image's user has another name.\n"
        f"  the key:   {key.get_name()} {key.fingerprint} in {path}\n"
        f"  its line:  {key.get_name()} {key.get_base64()}"
    )
    return told, (
        "the same command in a minute; then add its line to authorized_keys there (by EC2's serial console), set "
        "[provision] user to the image's, or cluster down, then cluster up"
    )


def explain_console(lines: Sequence[str]) -> tuple[str, bool]:
    """What the console's last lines say of an instance that cannot be reached; whether its boot is over. Pure."""
    booted = any(_BOOT_ENDS.search(line) for line in lines)
    booting = "" if booted else "  as far as its console shows, it is still booting\n"
    said = "".join(f"\n  | {line}" for line in lines)
    return booting + (f"  its console's last lines:{said}" if lines else "  its console is still empty"), booted


def render_last_lines(lines: Sequence[str]) -> str:
    """The last lines that a program printed, each on a line of its own below an error's message. Pure."""
    return "".join(f"\n  | {line}" for line in lines[-LAST_LINES:] or ["(it printed nothing)"])


def command_error(host: Host, command: str, output: Output) -> NodeCommandError:
    """The error for a failed command: host, command, code and the last lines. Pure."""
    shown = command if len(command) <= 200 else command[:197] + "..."
    ending = "killed by a signal:" if output.exit_code == NO_EXIT_CODE else f"exit code {output.exit_code} from:"
    said = render_last_lines((output.stdout + output.stderr).strip().splitlines())
    named = find_other_user(output)
    hint = f'set [provision] user = "{named}" in cluster.toml' if named else None
    if "No space left on device" in output.stderr:
        look = f"ssh {host.spec}" if host.spec else f"cluster exec --node {host.name} --"
        hint = f"{look} df -h; free some space there, then the same command again"
    return NodeCommandError(f"{host.name}: {ending} {shown}{said}", hint=hint)
