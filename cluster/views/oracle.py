"""What the oracle knows, as text and as JSON. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cluster.views.terminal import render_table
from provision.oracle.decide import Verdict, check_mxnet, find_gpu_wheels, judge_on, pick_for
from provision.oracle.fatbin import LibraryCode
from provision.oracle.tables import GPU_MACHINES, WHEELS, Gpu, Machine, Version, Wheel, show


def render_oracle() -> str:
    """Every GPU with its wheels, and every wheel with what it has and needs."""
    gpus: list[tuple[str, ...]] = [
        ("GPU", "CAPABILITY", "FAMILIES", '"auto" TAKES', "ALSO RUN, WITH THEIR CUDA IN THE IMAGE")
    ]
    for machines in _machines_by_gpu():
        auto = pick_for(machines[0])
        also = ", ".join(_short(wheel) for wheel in _other_wheels(machines[0]))
        families = " ".join(machine.family for machine in machines)
        gpus.append((*_gpu_cells(machines[0]), families, auto.requirement if auto else "-", also or "-"))
    heading = ("WHEEL", "MB", "CUDA", "MACHINE CODE (sm_)", "PTX", "READS s3://", "CUDA'S LIBRARIES")
    wheels: list[tuple[str, ...]] = [heading]
    wheels += [_wheel_cells(wheel) for wheel in WHEELS]
    return "\n".join([render_table(gpus), "* reads s3:// by itself", "", render_table(wheels)])


def oracle_document() -> dict[str, Any]:
    """What `cluster oracle --json` prints."""
    return {
        "machines": [_machine_document(machine) for machine in GPU_MACHINES],
        "wheels": [_wheel_document(wheel) for wheel in WHEELS],
    }


def render_machine(name: str, machine: Machine) -> str:
    """What there is for one instance type, and why."""
    gpu = machine.gpu.label if machine.gpu is not None else "no GPU"
    auto = pick_for(machine)
    if auto is not None:
        s3 = "reads s3:// by itself" if auto.reads_s3 else "does not read s3:// by itself"
        taken = f'mxnet = "auto" takes {auto.requirement}, which {s3}'
    else:
        taken = 'mxnet = "auto" has no wheel for it'
    notes = check_mxnet(instance_type=name, mxnet="auto", ami="auto") if auto is not None else ()
    rows = [("WHEEL", "RUNS", "READS s3://", "CUDA'S LIBRARIES", "WHY")]
    for verdict in _verdicts(machine):
        wheel = verdict.wheel
        runs = "cpu" if _leaves_gpu_unused(wheel, machine) else _yes(verdict.runs)
        rows.append((wheel.requirement, runs, _yes(wheel.reads_s3), _libraries(wheel), verdict.why))
    return "\n".join([f"{name}: {gpu}, {machine.architecture}", taken, *notes, "", render_table(rows)])


def machine_document(name: str, machine: Machine) -> dict[str, Any]:
    """What `cluster oracle INSTANCE_TYPE --json` prints."""
    return {
        "instance_type": name,
        **_machine_document(machine),
        "wheels": [
            {**_wheel_document(verdict.wheel), "runs": verdict.runs, "why": verdict.why}
            for verdict in _verdicts(machine)
        ],
    }


def render_libraries(libraries: Sequence[LibraryCode]) -> str:
    """What GPU code was found in a wheel."""
    if not libraries:
        return "no GPU code"
    lines = []
    for library in libraries:
        lines += [
            f"{library.name}: {library.modules} modules",
            f"  machine code  {_counts(library.code, library.modules)}",
            f"  PTX           {_counts(library.ptx, library.modules)}",
        ]
    return "\n".join(lines)


def libraries_document(libraries: Sequence[LibraryCode]) -> list[dict[str, Any]]:
    """What was found in a wheel, for `cluster oracle --wheel FILE --json`."""
    return [
        {
            "name": library.name,
            "modules": library.modules,
            "ptx_modules": library.ptx_modules,
            "machine_code": {show(version): count for version, count in library.code.items()},
            "ptx": {show(version): count for version, count in library.ptx.items()},
        }
        for library in libraries
    ]


def differences(wheel: Wheel, libraries: Sequence[LibraryCode]) -> tuple[str, ...]:
    """Where what was found in a wheel is not what the table says of it; empty when they agree."""
    found: list[tuple[str, object, object]] = [
        ("machine code", _numbers(v for library in libraries for v in library.code), _numbers(wheel.code)),
        ("PTX", _numbers(v for library in libraries for v in library.ptx), _numbers(wheel.ptx)),
        ("modules", sum(library.modules for library in libraries), wheel.modules),
        ("modules with PTX", sum(library.ptx_modules for library in libraries), wheel.ptx_modules),
    ]
    return tuple(f"{what}: found {is_}, the table says {said}" for what, is_, said in found if is_ != said)


def _machines_by_gpu() -> list[list[Machine]]:
    """The machines of a GPU together, in the table's order."""
    groups: dict[tuple[Gpu | None, str], list[Machine]] = {}
    for machine in GPU_MACHINES:
        groups.setdefault((machine.gpu, machine.architecture), []).append(machine)
    return list(groups.values())


def _other_wheels(machine: Machine) -> list[Wheel]:
    if machine.gpu is None or machine.architecture != "x86_64":
        return []
    return [wheel for wheel in find_gpu_wheels(machine.gpu) if wheel != pick_for(machine)]


def _verdicts(machine: Machine) -> list[Verdict]:
    """What uses the machine best comes first; otherwise in the order of preference."""
    verdicts = (judge_on(wheel, machine) for wheel in WHEELS)
    return sorted(verdicts, key=lambda v: (not v.runs, _leaves_gpu_unused(v.wheel, machine)))


def _leaves_gpu_unused(wheel: Wheel, machine: Machine) -> bool:
    return wheel.cuda is None and machine.gpu is not None and machine.architecture == "x86_64"


def _gpu_cells(machine: Machine) -> tuple[str, str]:
    gpu = machine.gpu
    if gpu is None or gpu.capability is None:
        return (f"{gpu.maker} {gpu.name}" if gpu is not None else "-", "-")
    return gpu.name, show(gpu.capability) + (" (arm64)" if machine.architecture == "arm64" else "")


def _wheel_cells(wheel: Wheel) -> tuple[str, ...]:
    cuda = show(wheel.cuda) if wheel.cuda is not None else "-"
    code, ptx = _numbers(wheel.code) or "-", _numbers(wheel.ptx) or "-"
    return wheel.requirement, str(wheel.size_mb), cuda, code, ptx, _yes(wheel.reads_s3), _libraries(wheel)


def _machine_document(machine: Machine) -> dict[str, Any]:
    gpu = machine.gpu
    auto = pick_for(machine)
    return {
        "family": machine.family,
        "architecture": machine.architecture,
        "gpu": None
        if gpu is None
        else {
            "name": gpu.name,
            "maker": gpu.maker,
            "compute_capability": None if gpu.capability is None else show(gpu.capability),
        },
        "auto": None if auto is None else auto.requirement,
        "auto_reads_s3": None if auto is None else auto.reads_s3,
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


def _libraries(wheel: Wheel) -> str:
    if wheel.cuda is None:
        return "needs none"
    return "from PyPI" if wheel.packages else f"CUDA {show(wheel.cuda)}, from the image"


def _short(wheel: Wheel) -> str:
    return f"{wheel.name.removeprefix('mxnet-')} {wheel.version}{'*' if wheel.reads_s3 else ''}"


def _counts(counts: Mapping[Version, int], modules: int) -> str:
    """sm_70, and in how many modules where not in all of them."""
    cells = (f"sm_{_numbers([v])}" + (f" (in {n})" if n != modules else "") for v, n in counts.items())
    return "  ".join(cells) or "none"


def _numbers(versions: Iterable[Version]) -> str:
    """As nvcc writes them: 70 75."""
    return " ".join(f"{major}{minor}" for major, minor in sorted(set(versions)))


def _yes(value: bool) -> str:  # noqa: FBT001 - a cell of a table
    return "yes" if value else "no"
