"""`cluster oracle`: shows the tables of GPUs and wheels."""

import difflib
from typing import Any

import click

from cluster.app import App, pass_app
from cluster.views.layout import render_table
from foundation.errors import NotFoundError
from provision.oracle.decide import Verdict, check_mxnet, judge, pick_for
from provision.oracle.tables import (
    GPU_MACHINES,
    WHEELS,
    Gpu,
    Machine,
    Wheel,
    find_fitting,
    find_machine,
    show,
    show_code,
)
from provision.oracle.torch import TORCH_BUILDS, TorchBuild, pick_torch

FRAMEWORKS = ("mxnet", "pytorch")


@click.command("oracle")
@click.argument("instance_type", required=False)
@click.option(
    "--framework", type=click.Choice(FRAMEWORKS), default="mxnet", show_default=True, help="Whose wheels to show."
)
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
@pass_app
def oracle(app: App, *, instance_type: str | None, framework: str, as_json: bool) -> None:
    """Show which MXNet or PyTorch wheel runs on which GPU.

    With an INSTANCE_TYPE (g5.xlarge) or a family (g5), it shows the GPU, whether each wheel runs on it and why, and
    which wheel mxnet = "auto" or torch = "auto" selects. It needs no network.
    """
    document = make_document(framework, instance_type)
    app.show(render(framework, instance_type, columns=app.find_columns()), document, as_json=as_json)


def render(framework: str, instance_type: str | None = None, *, columns: int | None = None) -> str:
    """Renders the tables of all GPUs and wheels, or the answer for one instance type. Raises NotFoundError."""
    if instance_type is None:
        wheels = _list_builds() if framework == "pytorch" else _list_wheels()
        return "\n\n".join(render_table(rows, columns=columns, prose=True) for rows in (_list_gpus(framework), wheels))
    render_one = _render_torch_machine if framework == "pytorch" else _render_mxnet_machine
    machine = _find_machine(instance_type)
    return f"{instance_type}: {machine.label}\n{render_one(instance_type, machine, columns)}"


def make_document(framework: str, instance_type: str | None = None) -> dict[str, Any]:
    """Returns the output of `cluster oracle --json`, for one instance type or for all. Raises NotFoundError."""
    if instance_type is None:
        machines = [_machine_document(framework, machine) for machine in GPU_MACHINES]
        return {"machines": machines, "wheels": _wheel_documents(framework)}
    machine = _find_machine(instance_type)
    wheels = _wheel_documents(framework, machine)
    return {"instance_type": instance_type, **_machine_document(framework, machine), "wheels": wheels}


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


# -- as JSON -----------------------------------------------------------------------------------------------------------


def _machine_document(framework: str, machine: Machine) -> dict[str, Any]:
    gpu: dict[str, Any] | None = None
    if machine.gpu is not None:
        capability = machine.gpu.capability
        gpu = {"name": machine.gpu.name, "maker": machine.gpu.maker}
        gpu["compute_capability"] = None if capability is None else show(capability)
    document = {"family": machine.family, "architecture": machine.architecture, "gpu": gpu}
    if framework == "pytorch":
        return {**document, "auto": _pick_torch(machine)}
    auto = pick_for(machine)
    return {**document, "auto": auto and auto.requirement, "auto_reads_s3": auto and auto.reads_s3}


def _wheel_documents(framework: str, machine: Machine | None = None) -> list[dict[str, Any]]:
    """Returns the wheels; for a machine, with whether they run."""
    if framework == "pytorch":
        return [
            {**_build_document(build), **({} if machine is None else {"runs": _runs_torch(build, machine)})}
            for build in TORCH_BUILDS
        ]
    if machine is None:
        return [_wheel_document(wheel) for wheel in WHEELS]
    return [{**_wheel_document(one.wheel), "runs": one.runs, "why": one.why} for one in _judge(machine)]


def _wheel_document(wheel: Wheel) -> dict[str, Any]:
    return {
        "wheel": wheel.requirement,
        "size_mb": wheel.size_mb,
        "cuda": None if wheel.cuda is None else show(wheel.cuda),
        "machine_code": [show(version) for version in wheel.code],
        "reads_s3": wheel.reads_s3,
        "needs": list(wheel.needs),
        "packages": list(wheel.packages),
    }


def _build_document(build: TorchBuild) -> dict[str, Any]:
    return {
        "first": show(build.first),
        "last": show(build.last),
        "cuda": show(build.cuda),
        "machine_code": [show(version) for version in build.code],
        "on_pypi": build.on_pypi,
    }


# -- as tables ---------------------------------------------------------------------------------------------------------


def _list_gpus(framework: str) -> list[tuple[str, ...]]:
    """Returns a row for each GPU and architecture, with the wheel of "auto"."""
    machines_of: dict[tuple[Gpu | None, str], list[Machine]] = {}
    for machine in GPU_MACHINES:
        machines_of.setdefault((machine.gpu, machine.architecture), []).append(machine)
    rows: list[tuple[str, ...]] = [("GPU", "CAPABILITY", "FAMILIES", '"auto" TAKES')]
    for (gpu, architecture), machines in machines_of.items():
        name, capability = gpu.name if gpu is not None else "-", "-"
        if gpu is not None and gpu.capability is not None:
            capability = show(gpu.capability) + (" (arm64)" if architecture == "arm64" else "")
        elif gpu is not None:
            name = f"{gpu.maker} {gpu.name}"
        families = " ".join(each.family for each in machines)
        rows.append((name, capability, families, _machine_document(framework, machines[0])["auto"] or "-"))
    return rows


def _list_wheels() -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("WHEEL", "MB", "CUDA", "MACHINE CODE (sm_)", "READS s3://", "CUDA'S LIBRARIES")]
    for wheel in WHEELS:
        cuda = show(wheel.cuda) if wheel.cuda is not None else "-"
        code, s3 = show_code(wheel.code) or "-", _yes(wheel.reads_s3)
        rows.append((wheel.requirement, str(wheel.size_mb), cuda, code, s3, _libraries(wheel)))
    return rows


def _libraries(wheel: Wheel) -> str:
    if wheel.cuda is None:
        return "needs none"
    return "from PyPI" if wheel.packages else f"CUDA {show(wheel.cuda)}, from the image"


def _yes(value: bool) -> str:  # noqa: FBT001 - a cell of a table
    return "yes" if value else "no"


def _render_mxnet_machine(name: str, machine: Machine, columns: int | None) -> str:
    """Renders the wheels for one instance type, whether each runs, and why. Pure."""
    auto = pick_for(machine)
    if auto is not None:
        s3 = "reads s3:// directly" if auto.reads_s3 else "does not read s3:// directly"
        taken = f'mxnet = "auto" takes {auto.requirement}, which {s3}'
    else:
        taken = 'mxnet = "auto" has no wheel for it'
    notes = check_mxnet(instance_type=name, mxnet="auto", ami="auto") if auto is not None else ()
    rows = [("WHEEL", "RUNS", "READS s3://", "CUDA'S LIBRARIES", "WHY")]
    for verdict in _judge(machine):
        wheel = verdict.wheel
        runs = "cpu" if _leaves_gpu_unused(wheel, machine) else _yes(verdict.runs)
        rows.append((wheel.requirement, runs, _yes(wheel.reads_s3), _libraries(wheel), verdict.why))
    return "\n".join([taken, *notes, "", render_table(rows, columns=columns, prose=True)])


def _judge(machine: Machine) -> list[Verdict]:
    """Returns the verdict on every wheel, in order of preference.

    Wheels that run come before those that do not; among both, wheels that leave the GPU unused come last.
    """
    verdicts = (judge(wheel, machine.gpu, machine.architecture) for wheel in WHEELS)
    return sorted(verdicts, key=lambda v: (not v.runs, _leaves_gpu_unused(v.wheel, machine)))


def _leaves_gpu_unused(wheel: Wheel, machine: Machine) -> bool:
    return wheel.cuda is None and machine.gpu is not None and machine.architecture == "x86_64"


def _list_builds() -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("TORCH", "CUDA", "MACHINE CODE (sm_)", "FROM")]
    for build in TORCH_BUILDS:
        source = "PyPI" if build.on_pypi else f"PyTorch's index for {build.label}"
        rows.append((build.versions, show(build.cuda), show_code(build.code), source))
    return rows


def _pick_torch(machine: Machine) -> str | None:
    """Returns the wheel of `torch = "auto"` for a machine; None if there is none. Pure."""
    return pick_torch(machine.gpu) if machine.architecture == "x86_64" else None


def _runs_torch(build: TorchBuild, machine: Machine) -> bool:
    return machine.architecture == "x86_64" and machine.gpu is not None and bool(find_fitting(build.code, machine.gpu))


def _render_torch_machine(_name: str, machine: Machine, columns: int | None) -> str:
    """Renders which PyTorch builds run on one instance type. Pure."""
    auto = _pick_torch(machine) or "no wheel: none is known to run"
    taken = f'torch = "auto" uses the image\'s PyTorch if it fits, else {auto}'
    if machine.gpu is None:
        return f"{taken}; every version runs on the CPU"
    heading, *builds = _list_builds()
    rows = [(heading[0], "RUNS", *heading[1:])]
    for build, listed in zip(TORCH_BUILDS, builds, strict=True):
        rows.append((listed[0], _yes(_runs_torch(build, machine)), *listed[1:]))
    return f"{taken}\n\n{render_table(rows, columns=columns, prose=True)}"
