"""`cluster oracle`."""

import difflib
from pathlib import Path

import click

from cluster.app import App, pass_app
from cluster.views.oracle import (
    differences,
    libraries_document,
    machine_document,
    oracle_document,
    render_libraries,
    render_machine,
    render_oracle,
)
from foundation.errors import ClusterError, NotFoundError, UsageError
from provision.oracle.fatbin import read_wheel
from provision.oracle.tables import GPU_MACHINES, find_machine, find_wheel


@click.command("oracle")
@click.argument("instance_type", required=False)
@click.option(
    "--wheel",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Read which GPUs a wheel has code for, out of the file itself.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
@pass_app
def oracle(app: App, *, instance_type: str | None, wheel: Path | None, as_json: bool) -> None:
    """Show which MXNet wheel runs on which GPU.

    With INSTANCE_TYPE (g5.xlarge, or the family, g5): its GPU, each wheel and why it runs there or not, and what
    mxnet = "auto" takes. It asks nobody: neither AWS nor PyPI.
    """
    if wheel is not None:
        if instance_type is not None:
            raise UsageError("INSTANCE_TYPE and --wheel are two questions", hint="ask one of them")
        _show_wheel(app, wheel, as_json=as_json)
    elif instance_type is not None:
        _show_machine(app, instance_type, as_json=as_json)
    elif as_json:
        app.print_json(oracle_document())
    else:
        app.print(render_oracle())


def _show_machine(app: App, instance_type: str, *, as_json: bool) -> None:
    machine = find_machine(instance_type)
    if machine is None:
        families = [known.family for known in GPU_MACHINES]
        nearest = difflib.get_close_matches(instance_type.partition(".")[0], families, n=3, cutoff=0.4)
        raise NotFoundError(
            f"{instance_type} is not in the table of instance types",
            hint="cluster oracle lists it" + (f"; the nearest are {', '.join(nearest)}" if nearest else ""),
        )
    if as_json:
        app.print_json(machine_document(instance_type, machine))
    else:
        app.print(render_machine(instance_type, machine))


def _show_wheel(app: App, path: Path, *, as_json: bool) -> None:
    libraries = read_wheel(path)
    # name-version-...: https://packaging.python.org/en/latest/specifications/binary-distribution-format/
    known = find_wheel("==".join(path.name.split("-")[:2]))
    differing = differences(known, libraries) if known is not None else ()
    if as_json:
        table = None if known is None else {"wheel": known.requirement, "differences": list(differing)}
        app.print_json({"file": str(path), "libraries": libraries_document(libraries), "table": table})
    else:
        app.print(render_libraries(libraries))
        if known is not None and not differing:
            app.say(f"this is what the table says of {known.requirement}")
    if known is not None and differing:
        raise ClusterError(f"{path}: not what the table says of {known.requirement}: {'; '.join(differing)}")
