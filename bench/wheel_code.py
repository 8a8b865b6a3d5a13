"""`python -m bench.wheel_code WHEEL...`: compares the GPU code in wheels with provision/oracle's tables."""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from bench.fatbin import LibraryCode, read_wheel
from provision.oracle.tables import Version, Wheel, find_wheel
from provision.oracle.torch import find_build, show_code


def differences(wheel: Wheel, libraries: Sequence[LibraryCode]) -> tuple[str, ...]:
    """Returns the differences between the contents of a wheel and its entry in the table; empty if they agree. Pure."""
    found: list[tuple[str, object, object]] = [
        ("machine code", _numbers(v for library in libraries for v in library.code), _numbers(wheel.code)),
        ("PTX", _numbers(v for library in libraries for v in library.ptx), _numbers(wheel.ptx)),
        ("modules", sum(library.modules for library in libraries), wheel.modules),
        ("modules with PTX", sum(library.ptx_modules for library in libraries), wheel.ptx_modules),
    ]
    return tuple(f"{what}: found {is_}, the table says {said}" for what, is_, said in found if is_ != said)


def torch_code_differs(version: str, libraries: Sequence[LibraryCode]) -> tuple[str, ...]:
    """The differences between the code in a wheel of that version and the table; empty when they agree. Pure."""
    build = find_build(f"torch=={version}")
    found = next((one for one in libraries if one.name.endswith("/libtorch_cuda.so")), None)
    if build is None or found is None:
        return ()
    whole = tuple(code for code, modules in found.code.items() if modules == found.modules)
    if whole == build.code:
        return ()
    return (f"machine code: found {show_code(whole)}, the table has {show_code(build.code)}",)


def _numbers(versions: Iterable[Version]) -> str:
    return show_code(sorted(set(versions)))


def main() -> None:
    """Prints each library's code, and what differs from the tables. Exits with 1 if anything does."""
    differing: list[str] = []
    for path in map(Path, sys.argv[1:]):
        libraries = read_wheel(path)
        for library in libraries:
            print(f"{library.name}: {library.modules} modules, {dict(library.code)}, PTX {dict(library.ptx)}")
        requirement = "==".join(path.name.split("-")[:2])
        wheel = find_wheel(requirement)
        found = (
            differences(wheel, libraries)
            if wheel
            else torch_code_differs(requirement.removeprefix("torch=="), libraries)
        )
        differing += [f"{path}: {text}" for text in found]
    sys.exit("\n".join(differing) or 0)


if __name__ == "__main__":
    main()
