"""`python -m bench.wheel_code WHEEL...`: compares the GPU code in wheels with provision/oracle's tables."""

import sys
from collections.abc import Sequence
from pathlib import Path

from bench.fatbin import LibraryCode, read_wheel
from provision.oracle.tables import Wheel, find_wheel, show_code
from provision.oracle.torch import find_build


def differences(wheel: Wheel, libraries: Sequence[LibraryCode]) -> tuple[str, ...]:
    """Returns the differences between the contents of a wheel and its entry in the table; empty if they agree. Pure."""
    found = tuple(sorted({version for library in libraries for version in library.code}))
    if found == wheel.code:
        return ()
    return (f"machine code: found {show_code(found)}, the table has {show_code(wheel.code)}",)


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
