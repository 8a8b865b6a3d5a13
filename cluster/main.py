"""The command `cluster`: finds the command's module, and prints every error in one place."""

import errno
import gc
import os
import signal
import sys
from pathlib import Path

import click

from cluster.commands import COMMANDS, RootGroup
from cluster.completion import VARIABLE
from cluster.views.examples import render_examples
from cluster.views.terminal import print_bytes_unchanged, write
from ec2_sandbox.sudo import become_caller
from foundation.errors import ClusterError, Interrupted
from foundation.unused import skip_unused

INTERRUPTED = 130  # 128 + SIGINT, as in shells


@click.group(
    cls=RootGroup,
    table=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=render_examples(""),
)
@click.option(
    "-c",
    "--config",
    "config_path",
    envvar="CLUSTER_CONFIG",
    default="cluster.toml",
    show_default=True,
    type=click.Path(path_type=Path),
    help="Configuration file of the cluster.",
)
@click.version_option(package_name="mxnet-cluster", prog_name="cluster")
def cli(config_path: Path) -> None:
    """Provision GPU clusters on EC2 and run distributed training with MXNet or PyTorch on them."""
    del config_path  # cluster.app.pass_app reads it from the context


def main() -> None:
    """Runs the command and exits with its code."""
    open_missing_streams()
    for stream in (sys.stdout, sys.stderr):
        print_bytes_unchanged(stream)
    code = run()
    try:
        sys.stdout.flush()
    except OSError as error:  # already reported; without this, Python would try again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = code or (0 if isinstance(error, BrokenPipeError) else 1)  # `cluster ... | head` has what it wants
    if code == INTERRUPTED:
        os._exit(code)  # a thread that still copies would abort the end of the interpreter
    gc.freeze()  # spares a last search for garbage among imported modules: 0.04 s
    sys.exit(code)


def open_missing_streams() -> None:
    """Opens /dev/null in place of a stdin, stdout or stderr that the caller has closed, as `cluster ... >&-` does."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
            os.set_inheritable(descriptor, True)  # noqa: FBT003 - for ssh and sudo
            setattr(sys, name, open(descriptor, "w" if descriptor else "r", closefd=False))  # noqa: SIM115


def run() -> int:
    """Runs the command, and returns its exit code.

    That is 0, 1 for a failure, 2 for an error of usage or configuration, 130 after an interrupt, or the code of the
    process that failed.
    """
    # SIGTERM ends a command as Ctrl-C does, so that cleanup runs in both cases.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    become_caller()
    skip_unused()
    try:
        code = cli.main(prog_name="cluster", standalone_mode=False)
    except (click.exceptions.Abort, KeyboardInterrupt) as error:
        for number in (signal.SIGINT, signal.SIGTERM):  # the message must not be interrupted
            signal.signal(number, signal.SIG_IGN)
        # click turns every EOFError into Abort, including that of a lost connection.
        if isinstance(error.__cause__, EOFError):
            _fail("the connection was lost", "run the same command again")
            code = 1
        else:
            _fail_interrupted(error)
            code = INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as error:
        write(sys.stderr, error.format_message())
        code = error.exit_code
    except click.ClickException as error:
        text = error.format_message().removesuffix(".")
        context = error.ctx if isinstance(error, click.UsageError) else None
        _fail(text[:1].lower() + text[1:], f"{context.command_path} --help" if context else None)
        code = error.exit_code
    except ClusterError as error:
        _fail(error.message, error.hint)
        code = error.exit_code
    except BrokenPipeError:
        # The reader of our output has exited, as in `cluster ... | head`.
        code = 1
    except OSError as error:  # on this machine, such as a full disk or a read-only folder
        is_full = error.errno in {errno.ENOSPC, errno.EDQUOT}
        path = (is_full and error.filename2) or error.filename  # of a copy, the disk of the new file is full
        where = f"{path}: " if path else ""
        hint = "free some space there" if where else "free some space; to see where it is missing: df -h"
        _fail(f"{where}{error.strerror or error}", hint if is_full else None)
        code = 1
    return code if isinstance(code, int) else 0


def _fail_interrupted(error: BaseException) -> None:
    if isinstance(error, click.exceptions.Abort) and error.__cause__ is None:
        click.echo(err=True)  # of a question; click ends the line of any other ^C
    if VARIABLE not in os.environ:  # the shell, which completes a line, would show it in the line
        _fail("interrupted", _find_hint(error))


def _find_hint(error: BaseException | None) -> str | None:
    """Returns the hint of an interrupt. A second one may have interrupted the first one's cleanup."""
    while error is not None and not isinstance(error, Interrupted):
        error = error.__cause__ or error.__context__
    return None if error is None else str(error)


def _fail(message: str, hint: str | None) -> None:
    write(sys.stderr, f"error: {message}", wrapped=True, style="red")
    if hint:
        write(sys.stderr, f"  try: {hint}", wrapped=True)
