"""The tree of all errors that a user can cause or see.

    ClusterError              1  what happened, where, and the next command to run
    |-- UsageError            2  the command line cannot be understood
    |-- ConfigError           2  cluster.toml (or a value that overrides it) is wrong
    |   `-- NotInRegionError  2  this region lacks a resource that a setting names
    |-- AwsError              1  an AWS call failed; AWS's own message first
    |   |-- CredentialsError  1  the credentials are missing, wrong or expired
    |   |-- CapacityError     1  AWS accepted a launch, then had no capacity for it
    |   |-- QuotaError        1  a quota of the account is too low
    |   `-- NoCapacityError   1  this region cannot provide the nodes
    |-- StalePlanError        1  the cluster has changed since the plan was made
    |-- NotFoundError         1  no such cluster, node, job or object
    |-- ConnectError          1  a node cannot be reached, or its host key has changed
    |-- NodeCommandError      1  a command on a node failed; names host, command, code and last lines
    |-- SandboxError          1  the sandbox cannot start on this machine, or one of its parts failed
    `-- JobError              *  a training job failed; carries the exit code of its first failing process

The command line prints them in one place (cluster/main.py) and exits with their exit code.
"""

from collections.abc import Sequence

from mxnet_cluster.errors import ClusterError, NotFoundError

__all__ = ["ClusterError", "NotFoundError"]  # of mxnet_cluster, which users import without the rest

_LISTED = 20
_LAST = 10


def list_lines(lines: Sequence[str]) -> str:
    """The first lines of a message's list, each on an indented line of its own, and how many more there are. Pure."""
    more = (f"and {len(lines) - _LISTED} more",) if len(lines) > _LISTED else ()
    return "".join(f"\n  {line}" for line in (*lines[:_LISTED], *more))


def render_last_lines(lines: Sequence[str]) -> str:
    """The last lines of a program's output, for the end of an error message. Pure."""
    return "".join(f"\n  | {line}" for line in lines[-_LAST:] or ["(it printed nothing)"])


class UsageError(ClusterError):
    """The command line cannot be understood, or a prompt is needed and there is no terminal."""

    exit_code = 2


class ConfigError(ClusterError):
    """A setting is wrong: names the key, the value and what is allowed."""

    exit_code = 2


class AwsError(ClusterError):
    """An AWS call failed, and a retry will not help."""


class CredentialsError(AwsError):
    """The credentials are missing, wrong or expired."""


class CapacityError(AwsError):
    """Nodes terminated while starting, because AWS had no capacity. `option`: the label of the LaunchOption."""

    def __init__(self, message: str, *, option: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.option = option


class QuotaError(AwsError):
    """The account's quota for running instances is too low."""


class NoCapacityError(AwsError):
    """This region cannot provide the nodes; another region may."""


class NotInRegionError(ConfigError):
    """This region lacks a resource that a setting names; another region may have it."""


class StalePlanError(ClusterError):
    """Another run, or AWS, has changed the cluster since the plan was made: plan again."""


class ConnectError(ClusterError):
    """A node cannot be reached over ssh, or presents another host key than the pinned one."""


class NodeCommandError(ClusterError):
    """A command on a node failed."""


class SandboxError(ClusterError):
    """The sandbox cannot run on this machine, or one of its parts failed."""


class JobError(ClusterError):
    """A training job failed."""

    def __init__(self, message: str, *, exit_code: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.exit_code = exit_code


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM; the message is the next command to run."""
