"""The command lines of this folder's programs."""

import os
import sys
from collections.abc import Sequence

CODE_DIR = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
"""The folder with this project's files on this host: on a node, the runtime, whose Python runs this program."""
SHIM = "/node/agent/shim.py"
"""The program that an engine's launcher starts in place of each process, below such a folder."""
SHIM_OPTIONS = "-ESs"
PYTHON_OPTIONS = "-Es"  # one word, which launch.py passes on in place; -s alone is launch.py's own option


def program_words(name: str, *words: str, code_dir: str = CODE_DIR) -> list[str]:
    """The command line of one of __main__.py's programs, on a host with the runtime in `code_dir`. Pure."""
    python = sys.executable if code_dir == CODE_DIR else code_dir + "/bin/python"
    return [python, PYTHON_OPTIONS, code_dir + "/node", name, *words]


def shim_words(variables: Sequence[str], *, python: str, code_dir: str = CODE_DIR) -> list[str]:
    """The command line that an engine's launcher starts in place of each process of a job. Pure.

    variables: those by which the engine identifies a process. It imports nothing but the standard library.
    """
    return [python, SHIM_OPTIONS, code_dir + SHIM, ",".join(variables)]
