"""The sandbox, ec2-sandbox, as part of this command: its reports and errors, with the names that this command has."""

from collections.abc import Iterator
from contextlib import contextmanager

from ec2_sandbox import errors
from ec2_sandbox.progress import Event as SandboxEvent
from ec2_sandbox.progress import Report as SandboxReport
from foundation.errors import NotFoundError, SandboxError, UsageError
from foundation.progress import Event, Report

_ERRORS = {errors.NotFoundError: NotFoundError, errors.UsageError: UsageError}


def rename(text: str) -> str:
    """Names this command instead of the sandbox's own. Pure."""
    return text.replace("ec2-sandbox ", "cluster sandbox ")


def as_report(report: Report) -> SandboxReport:
    """Returns the Report for the sandbox, which passes its events to this command's."""

    def pass_on(event: SandboxEvent) -> None:
        report(Event(kind=event.kind, what=rename(event.what), duration_s=event.duration_s))

    return pass_on


@contextmanager
def as_own_errors() -> Iterator[None]:
    """Within the block, the sandbox's errors become this command's."""
    try:
        yield
    except errors.SandboxError as error:
        kind = _ERRORS.get(type(error), SandboxError)
        hint = None if error.hint is None else rename(error.hint)
        raise kind(rename(error.message), hint=hint) from error
