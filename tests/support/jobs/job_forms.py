"""Orders and records of jobs from keys in one table, of which a test names only those that matter to it."""

from collections.abc import Mapping
from typing import Any

from msgspec import convert, to_builtins

from node.job_folder import mask
from node.protocol import AllocationRequest, JobSpec, Order, Record
from node.train_settings import TrainSettings

RENAMED = {"job": "id", "job_setup": "setup", "lines": "hosts"}
RENAMED |= {"subfolder": "cwd", "max_duration_s": "max_duration"}
OF_SPEC = {*JobSpec.__struct_fields__, "job"}
DEFAULTS = {"launcher": "ssh", "on_node_loss": "fail"}


def make_settings(**keys: Any) -> TrainSettings:
    return convert(to_builtins({**DEFAULTS, **keys}), TrainSettings)


def nest_order(keys: Mapping[str, Any]) -> dict[str, Any]:
    """An order as JSON. `job` is its id, `job_setup` is [train] setup, `lines` is [train] hosts."""
    made = _nest(keys, set(Order.__struct_fields__))
    made["spec"]["env"] = {name: mask(name, value) for name, value in keys.get("env", {}).items()}
    return made


def nest_record(keys: Mapping[str, Any]) -> dict[str, Any]:
    return _nest(keys, set(Record.__struct_fields__))


def make_request(**keys: Any) -> AllocationRequest:
    """A request for two nodes of a batch scheduler."""
    return AllocationRequest(**{"job": "20260101-000000-abcdef", "name": "mlp", "nodes": 2, **keys})


def make_record(**keys: Any) -> Record:
    return convert(nest_record(keys), Record)


def _nest(keys: Mapping[str, Any], own: set[str]) -> dict[str, Any]:
    """The table, with keys of the spec below `spec`, and the rest below `spec` and `train`."""
    given = to_builtins(dict(keys))
    spec = {RENAMED.get(key, key): value for key, value in given.items() if key in OF_SPEC - own}
    rest = {key: value for key, value in given.items() if key not in OF_SPEC | own}
    train = {RENAMED.get(key, key): value for key, value in rest.items() if value is not None}
    spec["train"] = to_builtins(make_settings(**train))
    return {**{key: value for key, value in given.items() if key in own}, "spec": spec}
