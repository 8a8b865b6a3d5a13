"""What a job ran with, how that differs from what it would run with now, and how secrets are kept out. Pure."""

import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from msgspec import Struct, to_builtins

from cluster.views.layout import render_table
from foundation.remote_command import HIDDEN
from node.job_folder import SECRET, mask
from node.protocol import JobHost, JobSpec, Machine
from node.train_settings import ENVIRONMENTS

# Keys of [train] that are shown otherwise, or that do not change what a job computes.
_LEFT_OUT = {"args", *ENVIRONMENTS, "hosts", "name", "nodes", "processes", "queue", "restarts", "script", "servers"}
_MOST_ROWS = 30
_FORMS = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\b(?:gh[pousr]_|github_pat_|glpat-|hf_|sk-|pypi-|xox[abprs]-)[\w-]{10,}"
    r"|\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*|https://hooks\.slack\.com/\S+|https://discord(?:app)?\.com/api/webhooks/\S+",
    re.DOTALL,
)
_NAME = (
    r"[\w-]*(?:SECRET|TOKEN(?!IZ)|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|SIGNATURE|API[_-]?KEY|ACCESS[_-]?KEY"
    r"|PRIVATE[_-]?KEY|WEBHOOK|AUTHORIZATION)[\w-]*"
)
_START = rf"""(?:{_NAME}["']?\s*[=:]\s*["']?|--{_NAME} |\b(?:Bearer|Basic) )+"""
_NAMED = re.compile(rf"""({_START})(?![\d.,]+\b)[^\s"'&,;]{{4,}}""", re.IGNORECASE)
_ACCOUNT = re.compile(r"(?<![\w.])\d{12}(?!\w)")  # also in a bucket's name


class Ingredients(Struct, frozen=True, kw_only=True):
    """What a job ran with, or would run with now.

    program: the version of this program. data: size and ETag of the objects below [data] url, by name; "": the number
    of all, and the SHA-256 over them.
    """

    spec: JobSpec
    hosts: tuple[JobHost, ...] = ()
    program: str = ""
    data: dict[str, str] = {}


def compare(recorded: Ingredients, present: Ingredients) -> list[tuple[str, str, str, str]]:
    """Compares what a job ran with and what it would run with now: (status, name, recorded, here); "-": unknown."""
    before, now = flatten(recorded), flatten(present)
    rows = []
    for name in before | now:
        then, here = before.get(name), now.get(name)
        different = "missing" if here is None else "not recorded" if then is None else "differs"
        if then is not None or here is not None:
            rows.append(("same" if then == here else different, name, then or "-", here or "-"))
    return rows


def flatten(of: Ingredients) -> dict[str, str | None]:
    """The ingredients as text, by names that begin with their kind; None: unknown."""
    spec, train = of.spec, to_builtins(of.spec.train)
    packages = {f"package {name}": version for name, _, version in (one.partition("==") for one in spec.packages)}
    variables = [pair for key in ENVIRONMENTS for pair in train[key].items()]
    environment = re.search(r"/env/([0-9a-f]{64})/", spec.python)
    return {
        "command": render_command(spec),
        "files": spec.project or "none",
        "processes": f"{spec.workers} workers, {spec.servers} servers",
        "environment": environment[1] if environment is not None else spec.python or None,
        "framework": spec.library,
        "image": spec.image or "none",
        "setup": spec.setup or "none",
        "runtime": spec.code,
        "cluster": of.program,
        "NCCL": next((version for name, version in packages.items() if "nvidia_nccl" in name), None),
        "nodes": str(len(of.hosts)),
        **{f"machine {field}": _count(of.hosts, field) for field in Machine.__struct_fields__},
        **packages,
        **{f"[train] {key}": str(value) for key, value in train.items() if key not in _LEFT_OUT},
        **{f"variable {name}": None if HIDDEN in value else value for name, value in variables},
        **{f"data {name or 'in all'}": value for name, value in of.data.items()},
    }


def render_command(spec: JobSpec) -> str:
    """The command, or the script with its arguments, as a user types it."""
    return shlex.join(spec.typed_command or (spec.script or "", *spec.train.args))


def _count(hosts: Iterable[JobHost], field: str) -> str | None:
    """A field of protocol.Machine for all hosts, such as "2x g5.xlarge"; None if it is unknown."""
    values = [getattr(host.machine, field) for host in hosts]
    texts = Counter(", ".join(value) if isinstance(value, tuple) else str(value) for value in values if value)
    return ", ".join(f"{number}x {text}" for text, number in sorted(texts.items())) or None


def render_rows(rows: Sequence[tuple[str, str, str, str]], *, columns: int | None = None) -> str:
    """What is the same, by kind in one line, and a table of the rest. rows: from compare."""
    same = Counter(name.partition(" ")[0] for status, name, *_ in rows if status == "same")
    lines = ["same: " + ", ".join(kind if number == 1 else f"{kind} ({number})" for kind, number in same.items())]
    others = [[cell[:64] for cell in row] for row in rows if row[0] != "same"]  # a digest has as many characters
    if others:
        lines.append(
            render_table([["STATUS", "INGREDIENT", "RECORDED", "HERE"], *others[:_MOST_ROWS]], columns=columns)
        )
    if len(others) > _MOST_ROWS:
        lines.append(f"and {len(others) - _MOST_ROWS} more")
    return "\n".join(lines)


def scrub(value: Any, known: Collection[str], *, is_public: bool = False, name: str = "") -> Any:
    """A value of JSON without what looks like a secret. known: values that are secrets. name: its key.

    is_public: also masks numbers of AWS accounts, and the values of all variables of a job. In a list, the word after
    an option such as --password is a secret.
    """
    if isinstance(value, Mapping):
        if is_public and name in ENVIRONMENTS:
            return dict.fromkeys(value, HIDDEN)
        return {key: scrub(one, known, is_public=is_public, name=str(key)) for key, one in value.items()}
    if isinstance(value, list | tuple):
        found = [scrub(one, known, is_public=is_public, name=name) for one in value]
        return [HIDDEN if _NAMED.fullmatch(f"{before} {one}") else one for before, one in pairwise(["", *found])]
    if not isinstance(value, str) or not value:
        return value
    if SECRET.search(name):
        return HIDDEN
    for one in sorted(known, key=len, reverse=True):
        value = value.replace(one, HIDDEN)
    text = _NAMED.sub(rf"\1{HIDDEN}", _FORMS.sub(HIDDEN, mask("", value)))
    return _ACCOUNT.sub(HIDDEN, text) if is_public else text
