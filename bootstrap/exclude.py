"""[bootstrap] exclude: patterns as .gitignore has them, matched as git does it, one folder after the other."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathspec.pattern import RegexPattern

# The first three are of no use on a node; the others hold private keys and passwords, which have no place there.
ALWAYS_LEFT_OUT = (".git", "__pycache__", "*.pyc", ".ssh", ".aws", ".cluster")
# In pathspec's regular expressions: the slash after a folder that the pattern matches, with whatever is below it.
BELOW = "ps_d"


class Patterns:
    """Says what is left out. Asked about a folder before what is in it, as git asks: what it leaves out stays out.

    pathspec's own match_file looks at a whole path at once: "!my/" would bring back everything below my/, whatever
    the patterns before it said of that.
    """

    def __init__(self, lines: Sequence[str]) -> None:
        self._patterns = _read(lines) if lines else ()

    def leave_out(self, path: str, *, is_folder: bool) -> bool:
        """Whether the last pattern that matches this path itself, not one above it, leaves it out."""
        name = path.rpartition("/")[2]
        if any(fnmatchcase(name, pattern) for pattern in ALWAYS_LEFT_OUT):
            return True
        last = next((p for p in reversed(self._patterns) if _matches(p, path, is_folder=is_folder)), None)
        return last is not None and bool(last.include)


def _read(lines: Sequence[str]) -> "tuple[RegexPattern, ...]":
    from pathspec import GitIgnoreSpec  # noqa: PLC0415 - slow to import, and few configurations have a pattern
    from pathspec.pattern import RegexPattern  # noqa: PLC0415 - as above

    return tuple(
        pattern
        for pattern in GitIgnoreSpec.from_lines(lines).patterns
        if isinstance(pattern, RegexPattern) and pattern.include is not None
    )


def _matches(pattern: "RegexPattern", path: str, *, is_folder: bool) -> bool:
    regex = pattern.regex
    if regex is None:
        return False
    if BELOW not in regex.groupindex:  # "**" and "my/**" match what is below as itself
        return regex.match(path) is not None
    if regex.pattern == f"(?P<{BELOW}>/)":  # "*/"
        return is_folder
    return regex.fullmatch(path) is not None or (is_folder and regex.fullmatch(f"{path}/") is not None)
