"""`cluster oracle`: shows the tables of GPUs and wheels."""

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

import click

from cluster.app import App, pass_app
from cluster.views.layout import render_table
from foundation.errors import NotFoundError
from provision.oracle.decide import Verdict, check_mxnet, find_gpu_wheels, judge_on, pick_for
from provision.oracle.tables import GPU_MACHINES, WHEELS, Gpu, Machine, Version, Wheel, find_machine, show
from provision.oracle.torch import TORCH_BUILDS, TorchBuild, find_fitting, pick_torch, show_code


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
    if instance_type is not None:
        machine = _find_machine(instance_type)
        if framework == "pytorch":
            text = render_torch_machine(instance_type, machine, columns=app.find_columns())
            document = torch_machine_document(instance_type, machine)
        else:
            text = render_machine(instance_type, machine, columns=app.find_columns())
            document = machine_document(instance_type, machine)
        app.show(text, document, as_json=as_json)
    elif framework == "pytorch":
        app.show(render_torch_oracle(columns=app.find_columns()), torch_oracle_document(), as_json=as_json)
    else:
        app.show(render_oracle(columns=app.find_columns()), oracle_document(), as_json=as_json)


# -- the tables --------------------------------------------------------------------------------------------------------


def render_oracle(*, columns: int | None = None) -> str:
    """Renders every GPU with its wheels, and every wheel with its code and its requirements. Pure."""
    gpus = [("GPU", "CAPABILITY", "FAMILIES", '"auto" TAKES', "ALSO RUN, WITH THEIR CUDA IN THE IMAGE")]
    for machine, *others in _group_machines():
        auto = pick_for(machine)
        also = ", ".join(_short(wheel) for wheel in _other_wheels(machine))
        families = " ".join(each.family for each in (machine, *others))
        gpus.append((*_gpu_cells(machine), families, auto.requirement if auto else "-", also or "-"))
    wheels = [("WHEEL", "MB", "CUDA", "MACHINE CODE (sm_)", "PTX", "READS s3://", "CUDA'S LIBRARIES")]
    for wheel in WHEELS:
        cuda = show(wheel.cuda) if wheel.cuda is not None else "-"
        code, ptx = _numbers(wheel.code) or "-", _numbers(wheel.ptx) or "-"
        s3, libraries = _yes(wheel.reads_s3), _libraries(wheel)
        wheels.append((wheel.requirement, str(wheel.size_mb), cuda, code, ptx, s3, libraries))
    tables = [render_table(rows, columns=columns, prose=True) for rows in (gpus, wheels)]
    return "\n".join([tables[0], "* reads s3:// directly", "", tables[1]])


def _group_machines() -> list[list[Machine]]:
    """Group the families that have the same GPU and architecture."""
    machines_of: dict[tuple[Gpu | None, str], list[Machine]] = {}
    for machine in GPU_MACHINES:
        machines_of.setdefault((machine.gpu, machine.architecture), []).append(machine)
    return list(machines_of.values())


def oracle_document() -> dict[str, Any]:
    """Returns the output of `cluster oracle --json`. Pure."""
    return {
        "machines": [_machine_document(machine) for machine in GPU_MACHINES],
        "wheels": [_wheel_document(wheel) for wheel in WHEELS],
    }


def _other_wheels(machine: Machine) -> list[Wheel]:
    if machine.gpu is None or machine.architecture != "x86_64":
        return []
    return [wheel for wheel in find_gpu_wheels(machine.gpu) if wheel != pick_for(machine)]


def _gpu_cells(machine: Machine) -> tuple[str, str]:
    gpu = machine.gpu
    if gpu is None or gpu.capability is None:
        return (f"{gpu.maker} {gpu.name}" if gpu is not None else "-", "-")
    return gpu.name, show(gpu.capability) + (" (arm64)" if machine.architecture == "arm64" else "")


def _short(wheel: Wheel) -> str:
    return f"{wheel.name.removeprefix('mxnet-')} {wheel.version}{'*' if wheel.reads_s3 else ''}"


def _libraries(wheel: Wheel) -> str:
    if wheel.cuda is None:
        return "needs none"
    return "from PyPI" if wheel.packages else f"CUDA {show(wheel.cuda)}, from the image"


def _numbers(versions: Iterable[Version]) -> str:
    """Renders compute capabilities as nvcc writes them: "70 75"."""
    return " ".join(f"{major}{minor}" for major, minor in sorted(set(versions)))


def _yes(value: bool) -> str:  # noqa: FBT001 - a cell of a table
    return "yes" if value else "no"


def _machine_document(machine: Machine) -> dict[str, Any]:
    auto = pick_for(machine)
    return {
        **_hardware_document(machine),
        "auto": None if auto is None else auto.requirement,
        "auto_reads_s3": None if auto is None else auto.reads_s3,
    }


def _hardware_document(machine: Machine) -> dict[str, Any]:
    gpu: dict[str, Any] | None = None
    if machine.gpu is not None:
        capability = machine.gpu.capability
        gpu = {"name": machine.gpu.name, "maker": machine.gpu.maker}
        gpu["compute_capability"] = None if capability is None else show(capability)
    return {
        "family": machine.family,
        "architecture": machine.architecture,
        "gpu": gpu,
        "accelerator": machine.accelerator,
    }


def _wheel_document(wheel: Wheel) -> dict[str, Any]:
    return {
        "wheel": wheel.requirement,
        "size_mb": wheel.size_mb,
        "cuda": None if wheel.cuda is None else show(wheel.cuda),
        "machine_code": [show(version) for version in wheel.code],
        "ptx": [show(version) for version in wheel.ptx],
        "reads_s3": wheel.reads_s3,
        "needs": list(wheel.needs),
        "packages": list(wheel.packages),
    }


# -- one instance type -------------------------------------------------------------------------------------------------


def _find_machine(instance_type: str) -> Machine:
    """Returns the machine of an instance type. Raises NotFoundError, which names the nearest families."""
    machine = find_machine(instance_type)
    if machine is None:
        families = [known.family for known in GPU_MACHINES]
        nearest = difflib.get_close_matches(instance_type.partition(".")[0], families, n=3, cutoff=0.4)
        raise NotFoundError(
            f"{instance_type} is not in the table of instance types",
            hint="cluster oracle lists it" + (f"; the nearest are {', '.join(nearest)}" if nearest else ""),
        )
    return machine


def render_machine(name: str, machine: Machine, *, columns: int | None = None) -> str:
    """Renders the wheels for one instance type, whether each runs, and why. Pure."""
    auto = pick_for(machine)
    if auto is not None:
        s3 = "reads s3:// directly" if auto.reads_s3 else "does not read s3:// directly"
        taken = f'mxnet = "auto" takes {auto.requirement}, which {s3}'
    else:
        taken = 'mxnet = "auto" has no wheel for it'
    notes = check_mxnet(instance_type=name, mxnet="auto", ami="auto") if auto is not None else ()
    rows = [("WHEEL", "RUNS", "READS s3://", "CUDA'S LIBRARIES", "WHY")]
    for verdict in _verdicts(machine):
        wheel = verdict.wheel
        runs = "cpu" if _leaves_gpu_unused(wheel, machine) else _yes(verdict.runs)
        rows.append((wheel.requirement, runs, _yes(wheel.reads_s3), _libraries(wheel), verdict.why))
    table = render_table(rows, columns=columns, prose=True)
    return "\n".join([f"{name}: {machine.label}", taken, *notes, "", table])


def machine_document(name: str, machine: Machine) -> dict[str, Any]:
    """Returns the output of `cluster oracle INSTANCE_TYPE --json`. Pure."""
    wheels = [
        {**_wheel_document(verdict.wheel), "runs": verdict.runs, "why": verdict.why} for verdict in _verdicts(machine)
    ]
    return {"instance_type": name, **_machine_document(machine), "wheels": wheels}


def _verdicts(machine: Machine) -> list[Verdict]:
    """Returns the verdict on every wheel, in order of preference.

    Wheels that run come before those that do not; among both, wheels that leave the GPU unused come last.
    """
    verdicts = (judge_on(wheel, machine) for wheel in WHEELS)
    return sorted(verdicts, key=lambda v: (not v.runs, _leaves_gpu_unused(v.wheel, machine)))


def _leaves_gpu_unused(wheel: Wheel, machine: Machine) -> bool:
    return wheel.cuda is None and machine.gpu is not None and machine.architecture == "x86_64"


# -- PyTorch's wheels --------------------------------------------------------------------------------------------------


def render_torch_oracle(*, columns: int | None = None) -> str:
    """Renders every GPU with the wheel of "auto" and the versions that run on it, and every build. Pure."""
    gpus = [("GPU", "CAPABILITY", "FAMILIES", '"auto" TAKES', "VERSIONS ON PYPI", "OTHERS")]
    for machine, *others in _group_machines():
        families = " ".join(each.family for each in (machine, *others))
        fitting = [build for build in TORCH_BUILDS if _runs_torch(build, machine)]
        on_pypi = show_range([build for build in fitting if build.on_pypi])
        elsewhere = ", ".join(f"{build.versions} +{build.label}" for build in fitting if not build.on_pypi)
        auto = pick_torch_for(machine)
        gpus.append((*_gpu_cells(machine), families, auto or "-", on_pypi or "-", elsewhere or "-"))
    tables = [render_table(rows, columns=columns, prose=True) for rows in (gpus, _list_builds())]
    return "\n\n".join(tables)


def show_range(builds: Sequence[TorchBuild]) -> str:
    """Renders the versions of consecutive builds as a range: "2.8 to 2.15". builds: newest first. Pure."""
    if not builds:
        return ""
    first, last = builds[-1].first, builds[0].last
    return show(first) if first == last else f"{show(first)} to {show(last)}"


def _list_builds() -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("TORCH", "CUDA", "MACHINE CODE (sm_)", "FROM", "KNOWN")]
    for build in TORCH_BUILDS:
        source = "PyPI" if build.on_pypi else f"PyTorch's index for {build.label}"
        known = "measured" if build.measured else "read, not measured"
        rows.append((build.versions, show(build.cuda), show_code(build.code), source, known))
    return rows


def pick_torch_for(machine: Machine) -> str | None:
    """Returns the wheel of `torch = "auto"` for a machine; None if there is none. Pure."""
    return pick_torch(machine.gpu) if machine.architecture == "x86_64" else None


def _runs_torch(build: TorchBuild, machine: Machine) -> bool:
    return machine.architecture == "x86_64" and machine.gpu is not None and bool(find_fitting(build, machine.gpu))


def render_torch_machine(name: str, machine: Machine, *, columns: int | None = None) -> str:
    """Renders which PyTorch builds run on one instance type. Pure."""
    auto = pick_torch_for(machine)
    taken = f'torch = "auto" uses the image\'s PyTorch if it fits, else {auto or "no wheel: none is known to run"}'
    if machine.gpu is None:
        return f"{name}: {machine.label}\n{taken}; every version runs on the CPU"
    rows: list[tuple[str, ...]] = [("TORCH", "RUNS", "CUDA", "MACHINE CODE (sm_)", "FROM", "KNOWN")]
    for build, listed in zip(TORCH_BUILDS, _list_builds()[1:], strict=True):
        rows.append((listed[0], _yes(_runs_torch(build, machine)), *listed[1:]))
    return "\n".join([f"{name}: {machine.label}", taken, "", render_table(rows, columns=columns, prose=True)])


def torch_oracle_document() -> dict[str, Any]:
    """Returns the output of `cluster oracle --framework pytorch --json`. Pure."""
    machines = [{**_hardware_document(machine), "auto": pick_torch_for(machine)} for machine in GPU_MACHINES]
    return {"machines": machines, "wheels": [_build_document(build) for build in TORCH_BUILDS]}


def torch_machine_document(name: str, machine: Machine) -> dict[str, Any]:
    """Returns the output of `cluster oracle INSTANCE_TYPE --framework pytorch --json`. Pure."""
    wheels = [{**_build_document(build), "runs": _runs_torch(build, machine)} for build in TORCH_BUILDS]
    auto = pick_torch_for(machine)
    return {"instance_type": name, **_hardware_document(machine), "auto": auto, "wheels": wheels}


def _build_document(build: TorchBuild) -> dict[str, Any]:
    return {
        "first": show(build.first),
        "last": show(build.last),
        "cuda": show(build.cuda),
        "machine_code": [show(version) for version in build.code],
        "on_pypi": build.on_pypi,
        "measured": build.measured,
    }
