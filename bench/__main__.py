"""`python -m bench [NAME...]`: runs the benchmarks and writes their sections of bench/RESULTS.md."""

import importlib
import re
import sys
from pathlib import Path

from bench.support.rounds import describe_machine

BENCHMARKS = (
    "startup", "train", "torch", "stragglers", "alarms", "stacks", "sandbox", "provision", "distribute", "ready",
    "transfer", "reading",
)  # fmt: skip
RESULTS = Path(__file__).with_name("RESULTS.md")
HEAD = "# Results\n\nWhat `make bench` showed last. Nothing here is asserted by a test.\n"


def main() -> None:
    """Runs the named benchmarks, or all of them. The other sections of RESULTS.md do not change."""
    names = sys.argv[1:] or list(BENCHMARKS)
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        sys.exit(f"there is no benchmark {unknown[0]!r}; there are: {', '.join(BENCHMARKS)}")
    for name in names:
        section = importlib.import_module(f"bench.{name}").run()
        title, _, rest = section.partition("\n")
        section = f"{title}\n\n{describe_machine()}\n{rest}"
        print(section)
        write_section(title, section)


def write_section(title: str, section: str) -> None:
    """Replaces the section with this title in RESULTS.md, or appends it."""
    text = RESULTS.read_text() if RESULTS.exists() else HEAD
    parts = {part.partition("\n")[0]: part.rstrip() for part in re.split(r"(?m)^(?=## )", text)}
    parts[title] = section.rstrip()
    RESULTS.write_text("\n\n".join(parts.values()) + "\n")


if __name__ == "__main__":
    main()
