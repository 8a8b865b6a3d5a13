"""`cluster oracle`: shows the tables of GPUs and wheels."""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import click

from cluster.app import App, pass_app
from cluster.views.layout import render_table
from foundation.errors import NotFoundError
from provision.oracle.decide import check_mxnet, judge, pick_for
from provision.oracle.tables import GPU_MACHINES, WHEELS, Machine, Wheel, find_fitting, find_machine, show
from provision.oracle.torch import TORCH_BUILDS, TorchBuild, pick_torch


@click.command("oracle")
@click.argument("instance_type", required=False)
@click.option(
    "--framework",
    type=click.Choice(["mxnet", "pytorch"]),
    default="mxnet",
    show_default=True,
    help="Whose wheels to show.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
@pass_app
def oracle(app: App, *, instance_type: str | None, framework: str, as_json: bool) -> None:
    """Show which MXNet or PyTorch wheel runs on which GPU.

    With an INSTANCE_TYPE (g5.xlarge) or a family (g5), it shows the GPU, whether each wheel runs on it and why, and
    which wheel mxnet = "auto" or torch = "auto" selects. It needs no network.
    """
    document = make_document(framework, instance_type)
    app.show(render(framework, document, columns=app.find_columns()), document, as_json=as_json)


def make_document(framework: str, instance_type: str | None = None) -> dict[str, Any]:
    """Returns the output of `cluster oracle --json`, for one instance type or for all. Raises NotFoundError."""
    if instance_type is None:
        machines = [_describe_machine(framework, machine) for machine in GPU_MACHINES]
        return {"machines": machines, "wheels": _list_wheels(framework, None)}
    machine = _find_machine(instance_type)
    wheels = _list_wheels(framework, machine)
    return {"instance_type": instance_type, **_describe_machine(framework, machine), "wheels": wheels}


def render(framework: str, document: Mapping[str, Any], *, columns: int | None = None) -> str:
    """Renders the tables of all GPUs and wheels, or the answer for one instance type."""
    rows = _tabulate_builds(document["wheels"]) if framework == "pytorch" else _tabulate_wheels(document["wheels"])
    wheels = render_table(rows, columns=columns, prose=True)
    if "instance_type" not in document:
        return f"{render_table(_tabulate_gpus(document['machines']), columns=columns, prose=True)}\n\n{wheels}"
    instance_type, auto = document["instance_type"], document["auto"]
    machine = _find_machine(instance_type)
    notes: Sequence[str] = ()
    if framework == "pytorch":
        taken = 'torch = "auto" uses the image\'s PyTorch if it fits, else ' + (
            auto or "no wheel: none is known to run"
        )
        notes = ["every version runs on the CPU"] if machine.gpu is None else []
    elif auto:
        s3 = "reads s3:// directly" if document["auto_reads_s3"] else "does not read s3:// directly"
        taken = f'mxnet = "auto" takes {auto}, which {s3}'
        notes = check_mxnet(instance_type=instance_type, mxnet="auto", ami="auto")
    else:
        taken = 'mxnet = "auto" has no wheel for it'
    return "\n".join([f"{instance_type}: {machine.label}", taken, *notes, "", wheels])


def _find_machine(instance_type: str) -> Machine:
    """Returns the machine of an instance type. Raises NotFoundError, which names the nearest families."""
    machine = find_machine(instance_type)
    if machine is None:
        families = [known.family for known in GPU_MACHINES]
        nearest = difflib.get_close_matches(instance_type.partition(".")[0], families, n=3, cutoff=0.4)
        raise NotFoundError(
            f"{instance_type} is not in the table of instance types",
            hint="cluster oracle" + (f"; the nearest are {', '.join(nearest)}" if nearest else ""),
        )
    return machine


def _describe_machine(framework: str, machine: Machine) -> dict[str, Any]:
    gpu: dict[str, Any] | None = None
    if machine.gpu is not None:
        capability = machine.gpu.capability
        gpu = {"name": machine.gpu.name, "maker": machine.gpu.maker}
        gpu["compute_capability"] = None if capability is None else show(capability)
    document = {"family": machine.family, "architecture": machine.architecture, "gpu": gpu}
    if framework == "pytorch":
        return {**document, "auto": pick_torch(machine.gpu) if machine.architecture == "x86_64" else None}
    auto = pick_for(machine)
    return {**document, "auto": auto and auto.requirement, "auto_reads_s3": auto and auto.reads_s3}


def _list_wheels(framework: str, machine: Machine | None) -> list[dict[str, Any]]:
    """Returns the wheels; for a machine, with whether they run, those that run on its GPU first."""
    if framework == "pytorch":
        return [_describe_build(build, machine) for build in TORCH_BUILDS]
    wheels = [_describe_wheel(wheel, machine) for wheel in WHEELS]
    if machine is None:
        return wheels
    uses_cpu = machine.gpu is None or machine.architecture != "x86_64"
    return sorted(wheels, key=lambda one: (not one["runs"], one["cuda"] is None and not uses_cpu))


def _describe_wheel(wheel: Wheel, machine: Machine | None) -> dict[str, Any]:
    verdict = None if machine is None else judge(wheel, machine.gpu, machine.architecture)
    return {
        "wheel": wheel.requirement,
        "size_mb": wheel.size_mb,
        "cuda": None if wheel.cuda is None else show(wheel.cuda),
        "machine_code": [show(version) for version in wheel.code],
        "reads_s3": wheel.reads_s3,
        "needs": list(wheel.needs),
        "packages": list(wheel.packages),
        **({} if verdict is None else {"runs": verdict.runs, "why": verdict.why}),
    }


def _describe_build(build: TorchBuild, machine: Machine | None) -> dict[str, Any]:
    gpu = None if machine is None or machine.architecture != "x86_64" else machine.gpu
    return {
        "first": show(build.first),
        "last": show(build.last),
        "cuda": show(build.cuda),
        "machine_code": [show(version) for version in build.code],
        "on_pypi": build.on_pypi,
        **({} if machine is None else {"runs": gpu is not None and bool(find_fitting(build.code, gpu))}),
    }


# -- the documents as tables -------------------------------------------------------------------------------------------


def _tabulate_gpus(machines: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """A row for each GPU and architecture, with the wheel of "auto"."""
    families: dict[tuple[str, str, str], list[str]] = {}
    for machine in machines:
        gpu = machine["gpu"] or {"name": "-", "maker": "NVIDIA", "compute_capability": None}
        name = gpu["name"] if gpu["maker"] == "NVIDIA" else f"{gpu['maker']} {gpu['name']}"
        of_arm = " (arm64)" if machine["architecture"] == "arm64" and gpu["compute_capability"] else ""
        key = (name, f"{gpu['compute_capability'] or '-'}{of_arm}", machine["auto"] or "-")
        families.setdefault(key, []).append(machine["family"])
    rows = [(name, capability, " ".join(found), auto) for (name, capability, auto), found in families.items()]
    return [("GPU", "CAPABILITY", "FAMILIES", '"auto" TAKES'), *rows]


def _tabulate_wheels(wheels: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("WHEEL", "MB", "CUDA", "MACHINE CODE (sm_)", "READS s3://", "CUDA'S LIBRARIES")]
    for one in wheels:
        image = "needs none" if one["cuda"] is None else f"CUDA {one['cuda']}, from the image"
        libraries = "from PyPI" if one["packages"] else image
        s3 = "yes" if one["reads_s3"] else "no"
        rows.append((one["wheel"], str(one["size_mb"]), one["cuda"] or "-", _show_code(one), s3, libraries))
    return _add_verdicts(rows, wheels)


def _tabulate_builds(builds: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("TORCH", "CUDA", "MACHINE CODE (sm_)", "FROM")]
    for one in builds:
        versions = one["first"] if one["first"] == one["last"] else f"{one['first']} to {one['last']}"
        source = "PyPI" if one["on_pypi"] else f"PyTorch's index for cu{one['cuda'].replace('.', '')}"
        rows.append((versions, one["cuda"], _show_code(one), source))
    return _add_verdicts(rows, builds)


def _show_code(wheel: Mapping[str, Any]) -> str:
    return " ".join(version.replace(".", "") for version in wheel["machine_code"]) or "-"


def _add_verdicts(rows: list[tuple[str, ...]], wheels: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """The rows, and whether each wheel runs on the machine, if there is one."""
    if "runs" not in wheels[0]:
        return rows
    runs = ["RUNS", *("yes" if one["runs"] else "no" for one in wheels)]
    reasons = [("WHY",), *((one["why"],) for one in wheels)] if "why" in wheels[0] else [()] * len(rows)
    return [(row[0], does, *row[1:], *why) for row, does, why in zip(rows, runs, reasons, strict=True)]
