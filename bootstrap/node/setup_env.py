"""Merges the variables that the user's set-up commands exported into a job's environment. run_setup.py stores them.

Python 3.6 and later, standard library only.
"""

import json
import os
from typing import Any, Dict, List, Mapping, Sequence


def read(cluster_dir: str, digest: str) -> Dict[str, Any]:
    """Reads the changes that the commands of a digest made; `cluster_dir` is ~/.cluster. Raises OSError, ValueError."""
    with open(os.path.join(cluster_dir, "setup", digest + ".env"), encoding="utf-8") as stream:
        changes = json.load(stream)  # type: Dict[str, Any]
        return changes  # noqa: RET504 - typed


def merge(environment: Mapping[str, str], changes: Mapping[str, Any]) -> Dict[str, str]:
    """The environment with the changes. Pure.

    In lists of paths, new entries come before and after those of `environment`, which stay.
    """
    merged = {name: value for name, value in environment.items() if name not in changes["unset"]}
    merged.update(changes["set"])
    for name, words in changes["prepend"].items():
        merged[name] = ":".join(list(words) + _words(merged, name, words))
    for name, words in changes["append"].items():
        merged[name] = ":".join(_words(merged, name, words) + list(words))
    return merged


def _words(environment: Mapping[str, str], name: str, besides: Sequence[str]) -> List[str]:
    return [word for word in environment.get(name, "").split(":") if word and word not in besides]
