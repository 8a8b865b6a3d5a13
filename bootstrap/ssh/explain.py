"""Explains why a node cannot be reached, or why a command failed on it: the cause, and the next command to run."""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import paramiko

from bootstrap.ssh.host import Host, Output
from bootstrap.ssh.keys import UnverifiedHostKey
from foundation.errors import NodeCommandError, render_last_lines

CONNECT_TIMEOUT_S = 10
NO_EXIT_CODE = -1  # paramiko's value if a signal ended the command, or if the connection was lost
SPACE_HINT = (
    "free some space there (quota -s shows a quota), or on EC2, set a larger [provision] volume_size_gib and create "
    "the cluster again"
)
FULL = re.compile("No space left on device|Disk quota exceeded")
_BOOT_ENDS = re.compile(r"\blogin:|Cloud-init v\. \S+ finished at")
"""getty's prompt, and the last line of cloud-init."""
_SILENT = ("Error reading SSH protocol banner", "No existing session")
"""paramiko's messages for a port that accepts a connection but does not speak ssh in time."""
_SUDO_ASKS = re.compile(r"^sudo: .*(?:password is required|terminal is required|no tty present)", re.MULTILINE)
_UNANSWERED = ("Authentication timeout.", "Authentication failed: transport shut down or saw EOF")
"""paramiko's messages for a login that was neither accepted nor refused."""


def is_refused_key(error: BaseException | None) -> bool:
    """Whether the other side has refused a key. paramiko raises the same error for a login without an answer. Pure."""
    return isinstance(error, paramiko.AuthenticationException) and str(error) not in _UNANSWERED


def may_be_booting(error: BaseException | None) -> bool:
    """Whether a connection error may come from a node that is booting. Pure."""
    if isinstance(error, paramiko.BadHostKeyException) or (isinstance(error, UnverifiedHostKey) and error.final):
        return False
    return isinstance(error, OSError | EOFError | paramiko.SSHException)


def explain(host: Host, error: BaseException) -> tuple[str, str]:
    """The reason why a connection failed, and the next command to run. Pure."""
    text, hint = _explain_cause(host, innermost(error))
    return f"{host.name} ({where(host)}): {text}", hint


def where(host: Host) -> str:
    """The host's description in messages. Pure."""
    if not host.spec:
        return f"{host.instance_id}, {host.user}@{host.address}"
    return f"{host.user}@{host.address}" + (f" port {host.port}" if host.port != 22 else "")


def innermost(error: BaseException) -> BaseException:
    """The error at the first address if paramiko has tried several, else the error itself. Pure."""
    if isinstance(error, paramiko.ssh_exception.NoValidConnectionsError) and error.errors:
        cause: BaseException = next(iter(error.errors.values()))
        return cause
    return error


def _explain_cause(host: Host, error: BaseException) -> tuple[str, str]:
    reboot = f"cluster status; a reboot restarts sshd: aws ec2 reboot-instances --instance-ids {host.instance_id}"
    match error:
        case paramiko.BadHostKeyException() | UnverifiedHostKey():
            return _explain_host_key(host, error)
        case paramiko.AuthenticationException() if is_refused_key(error):
            text = f"ssh answers, but does not accept the cluster's key for user {host.user}"
            return text, "cluster status"
        case TimeoutError():
            text = f"no answer on port 22 within {CONNECT_TIMEOUT_S} s; does the security group allow your address?"
            return text, "cluster allow, if your address has changed since `cluster up`; else cluster status"
        case paramiko.SSHException() if str(error).startswith(_SILENT):
            return f"port 22 takes connections, but no sshd answers there within {CONNECT_TIMEOUT_S} s", reboot
        case ConnectionRefusedError():
            return "connection refused on port 22: the host runs, but its sshd does not", reboot
    return f"ssh failed: {str(error) or type(error).__name__}", "cluster status"


def _explain_host_key(host: Host, error: "paramiko.BadHostKeyException | UnverifiedHostKey") -> tuple[str, str]:
    presented = f"  presented: {error.key.get_name()} {error.key.fingerprint}"
    other_machine = "cluster down, then cluster up, unless you know why the key has changed"
    if isinstance(error, paramiko.BadHostKeyException):
        return (
            "its host key has changed, so this may not be the machine that was launched.\n"
            f"  pinned:    {error.expected_key.get_name()} {error.expected_key.fingerprint}\n{presented}"
        ), other_machine
    if error.shown:
        return (
            "its host key is not among those that the instance's console shows, so this may not be the machine that "
            f"was launched. Nothing was sent to it.\n{presented}\n  console:   "
            + "\n             ".join(sorted(error.shown))
        ), other_machine
    public = f"/etc/ssh/ssh_host_{error.key.algorithm_name.lower()}_key.pub"
    return (
        "its host key cannot be verified: the instance's console shows no host keys' fingerprints. It is still "
        "booting, or its image's cloud-init does not print them, or they are too old (only the first boot prints them, "
        "and EC2 keeps 64 KB). Nothing was sent to it.\n"
        f"{presented}\n  its line:  {host.instance_id} {error.key.get_name()} {error.key.get_base64()}"
    ), (
        "run the command again in a minute; if that does not help, compare the presented key with the node's own "
        f"(on EC2's serial console: ssh-keygen -lf {public}), and if they match, add its line to "
        f"{shlex.quote(str(error.pins_path))}"
    )


def explain_refused_key(host: Host, *, key: paramiko.PKey, path: Path) -> tuple[str, str]:
    """The reason why a node does not accept the cluster's key from the configured user, and the remedy. Pure."""
    message = (
        f"{host.name} ({host.instance_id}, {host.address}): ssh answers, but does not accept the cluster's key for "
        f"user {host.user}: the image's user has another name, cloud-init has not finished there, or "
        f"~{host.user}/.ssh/authorized_keys on the node does not contain it.\n"
        f"  the key:   {key.get_name()} {key.fingerprint} in {path}\n"
        f"  its line:  {key.get_name()} {key.get_base64()}"
    )
    return message, (
        "set [provision] user to the image's: ubuntu, ec2-user (Amazon Linux, RHEL), admin (Debian), rocky; or run the "
        "command again in a minute; or add its line to authorized_keys there (on EC2's serial console)"
    )


def explain_console(lines: Sequence[str]) -> tuple[str, bool]:
    """The last console lines of an unreachable instance, as text, and whether its boot is over. Pure.

    lines: of the whole boot, since a node that hangs may have printed much after it.
    """
    booted = any(_BOOT_ENDS.search(line) for line in lines)
    booting = "" if booted else "  according to its console, it is still booting\n"
    text = "".join(f"\n  | {line}" for line in lines[-10:])
    return booting + (f"  its console's last lines:{text}" if lines else "  its console is still empty"), booted


def find_sudo_hint(node: str, text: str) -> str | None:
    """The hint for a program that sudo has asked for a password, which nobody can type there; None if it has not."""
    if _SUDO_ASKS.search(text) is None:
        return None
    return (
        f"sudo asks for a password on {node}: allow this user to run it without one there (NOPASSWD, sudoers(5)), or "
        "have an administrator do what is missing"
    )


def command_error(host: Host, command: str, output: Output) -> NodeCommandError:
    """The error for a failed command, with the host, the command, the exit code and the last lines. Pure."""
    shown = command if len(command) <= 200 else command[:197] + "..."
    ending = "killed by a signal:" if output.exit_code == NO_EXIT_CODE else f"exit code {output.exit_code} from:"
    text = render_last_lines((output.stdout + output.stderr).strip().splitlines())
    hint = None
    if FULL.search(output.stderr):
        look = f"ssh {host.spec}" if host.spec else f"cluster exec --node {host.name} --"
        hint = f"{look} df -h; free some space there (see also quota -s), then run it again"
    hint = find_sudo_hint(host.name, output.stdout + output.stderr) or hint
    return NodeCommandError(f"{host.name}: {ending} {shown}{text}", hint=hint)
