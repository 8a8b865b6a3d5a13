"""What the help of each subcommand ends with, by examples.toml."""

import tomllib
from pathlib import Path

EXAMPLES: dict[str, str] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def render_examples(text: str) -> str:
    """Returns what the help of a command ends with. Pure."""
    return "\n  ".join(["\b\nExamples:", *text.strip().splitlines()])
