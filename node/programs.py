"""The command lines of this folder's programs."""

import os
from typing import List, Sequence

CODE_DIR = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
"""The folder with this project's files on this host."""
SHIM = "/node/agent/shim.py"
"""The program that an engine's launcher starts in place of each process, below such a folder."""
SHIM_OPTIONS = "-ESs"
PYTHON_OPTIONS = "-Es"  # one word, which launch.py passes on in place; -s alone is launch.py's own option


def program_words(name: str, *words: str, python: str, code_dir: str = CODE_DIR) -> List[str]:
    """The command line of one of __main__.py's programs, on a host with this project's files in `code_dir`. Pure."""
    return [python, PYTHON_OPTIONS, code_dir + "/node", name, *words]


def shim_words(variables: Sequence[str], *, python: str, code_dir: str = CODE_DIR) -> List[str]:
    """The command line that an engine's launcher starts in place of each process of a job. Pure.

    variables: those by which the engine identifies a process. It imports nothing but the standard library.
    """
    return [python, SHIM_OPTIONS, code_dir + SHIM, ",".join(variables)]
