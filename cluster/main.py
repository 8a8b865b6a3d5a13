"""The command `cluster`: finds the command's module, and prints every error in one place."""

import atexit
import gc
import io
import os
import signal
import sys
from pathlib import Path

import click

from cluster.app import App
from cluster.lazy_group import LazyGroup
from cluster.terminal import print_bytes_unchanged, write
from provision.errors import ClusterError
from provision.sudo import become_caller, find_repair, give_back
from provision.user_folders import cache_folder, correct_home, state_folder

# Name -> where it is, and its help in a line: `cluster --help` shows this without importing boto3, Fabric or rich.
COMMANDS: dict[str, tuple[str, str]] = {
    "init": ("cluster.commands.init:command", "Write an annotated cluster.toml here."),
    "up": ("cluster.commands.up:command", "Launch the cluster's nodes and make them ready to train."),
    "status": ("cluster.commands.status:command", "Show the cluster's nodes, and what they cost."),
    "list": ("cluster.commands.list:command", "Show all clusters in the region."),
    "resize": ("cluster.commands.resize:command", "Make the cluster one of N nodes."),
    "stop": ("cluster.commands.stop:command", "Stop the running job, or another; with --nodes the nodes."),
    "start": ("cluster.commands.start:command", "Start stopped nodes."),
    "adopt": ("cluster.commands.adopt:command", "Make nodes of instances that this machine did not launch."),
    "allow": ("cluster.commands.allow:command", "Let this machine's present address in."),
    "verify": ("cluster.commands.verify:command", "Try the nodes: MXNet, S3, ports, clocks, disks."),
    "train": ("cluster.commands.train:command", "Run a training job on the cluster, to its end."),
    "jobs": ("cluster.commands.jobs:command", "Show the cluster's jobs, the newest first."),
    "logs": ("cluster.commands.logs:command", "Show what a job has printed."),
    "bench": ("cluster.commands.bench:command", "Measure the cluster: network, kv-store, scaling."),
    "exec": ("cluster.commands.exec_:command", "Run a command on all nodes side by side."),
    "ssh": ("cluster.commands.ssh:command", "Open a shell on a node."),
    "down": ("cluster.commands.down:command", "Delete everything that `up` made, and prove it."),
    "data": ("cluster.commands.data:data", "Datasets to S3 and from S3."),
    "oracle": ("cluster.commands.oracle:command", "Show which MXNet wheel runs on which GPU."),
    "iam-policy": ("cluster.commands.iam_policy:command", "Print the least IAM policy that these commands need."),
    "sandbox": ("cluster.commands.sandbox:sandbox", "The local stand-in for EC2 and S3."),
}

INTERRUPTED = 130  # 128 + SIGINT, as shells have it
# Nothing of what imports make is garbage: searched less often for it, they take a tenth less.
GARBAGE_THRESHOLD = 50_000


@click.group(cls=LazyGroup, table=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "-c",
    "--config",
    "config_path",
    envvar="CLUSTER_CONFIG",
    default="cluster.toml",
    show_default=True,
    type=click.Path(path_type=Path),
    help="The cluster's description.",
)
@click.version_option(package_name="mxnet-cluster", prog_name="cluster")
@click.pass_context
def cli(ctx: click.Context, config_path: Path) -> None:
    """GPU clusters on EC2 for distributed MXNet training: up, train, down."""
    ctx.obj = App(config_path=config_path)
    ctx.call_on_close(ctx.obj.close)


def main() -> None:
    """Run the command and exit, at once: to take the modules apart would cost Python a tenth of a second and more."""
    print_bytes_unchanged(sys.stdout)
    code = run()
    atexit._run_exitfuncs()  # noqa: SLF001 - what Python itself calls first
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:  # nobody is there to be told
        code = code or 1
    os._exit(code)


def run() -> int:
    """Run the command; 0 done, 1 it failed, 2 usage or configuration, or the failing process's code."""
    gc.set_threshold(GARBAGE_THRESHOLD)
    correct_home()
    # SIGTERM ends a command as Ctrl-C does, so that what it holds is let go in the same way.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if become_caller():
        give_back((cache_folder(), state_folder()))
        give_back(_bytecode_folders())
    try:
        code = cli.main(standalone_mode=False)
    except (click.exceptions.Abort, KeyboardInterrupt) as error:
        # click takes every EOFError for a user who has had enough, and so the one of a connection that has ended.
        if isinstance(error.__cause__, EOFError):
            _fail("the connection was lost", "the same command again")
            code = 1
        else:
            _fail("interrupted", None)
            code = INTERRUPTED
    except click.ClickException as error:
        said = io.StringIO()
        error.show(file=said)
        write(sys.stderr, said.getvalue().rstrip("\n"))  # a file name may stand in it
        code = error.exit_code
    except ClusterError as error:
        _fail(error.message, _repair(error.__cause__) or error.hint)
        code = error.exit_code
    except BrokenPipeError:
        # The reader of our output is gone (`cluster ... | head`): nothing is left to say, nor a place to say it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except OSError as error:  # this machine's: a full disk, a folder that may not be written to
        where = f"{error.filename}: " if error.filename else ""
        _fail(f"{where}{error.strerror or error}", _repair(error))
        code = 1
    return code if isinstance(code, int) else 0


def _bytecode_folders() -> set[Path]:
    """Where Python has kept what it has compiled of this program."""
    cached = (getattr(module, "__cached__", None) for module in tuple(sys.modules.values()))
    return {Path(file).parent for file in cached if file}


def _repair(error: BaseException | None) -> str | None:
    """What to run when a file is out of reach since a command under sudo left it to root."""
    if isinstance(error, PermissionError) and isinstance(error.filename, str):
        return find_repair(Path(error.filename), (cache_folder(), state_folder()))
    return None


def _fail(message: str, hint: str | None) -> None:
    write(sys.stderr, f"error: {message}", colour="red")
    if hint:
        write(sys.stderr, f"  try: {hint}")
