"""The command lines of this folder's programs."""

import os
from typing import List, Sequence

CODE_DIR = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
"""The folder with this project's files on this host."""
PROXY = "/node/setup/containers/rank_proxy.py"
"""The program that torchrun in a container starts in place of each rank, below such a folder."""
PYTHON_OPTIONS = "-Es"  # one word, which launch.py passes on in place; -s alone is launch.py's own option


def program_words(name: str, *words: str, python: str, code_dir: str = CODE_DIR) -> List[str]:
    """The command line of one of __main__.py's programs, on a host with this project's files in `code_dir`. Pure."""
    return [python, PYTHON_OPTIONS, code_dir + "/node", name, *words]


def ranks_words(variables: Sequence[str], container: str, path: str, *, python: str) -> List[str]:
    """The command line of the program that starts the ranks of a torchrun in a container. Pure."""
    return program_words("role", "ranks", ",".join(variables), container, path, python=python)


def proxy_words(variables: Sequence[str], *, python: str, code_dir: str) -> List[str]:
    """The command line that torchrun in a container starts in place of each rank. Pure."""
    return [python, code_dir + PROXY, ",".join(variables)]


def launched_words(variables: Sequence[str], *given: str, python: str, code_dir: str = CODE_DIR) -> List[str]:
    """The command line that an engine's launcher starts in place of each process of a job. Pure.

    variables: those of the engine. given: their values as JSON, if they are not in the process's environment.
    """
    return program_words("role", "launched", ",".join(variables), *given, python=python, code_dir=code_dir)
