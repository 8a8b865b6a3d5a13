"""The ways to start a job's processes, by [train] launcher. To add one, add a module like these and a line here."""

from node.engines.engine import Engine, Framework
from node.engines.launch_py import LocalLaunchPy, SshLaunchPy
from node.engines.mpi import MpiEngine
from node.engines.schedulers import SCHEDULERS
from node.engines.torch import EnvEngine, TorchrunEngine

ENGINES: dict[str, Engine] = {
    engine.name: engine for engine in (SshLaunchPy(), LocalLaunchPy(), MpiEngine(), TorchrunEngine(), EnvEngine())
}
DEFAULT: dict[Framework, str] = {"mxnet": "ssh", "pytorch": "torchrun", "none": "env"}
"""The engine of launcher = "auto", by framework."""
LAUNCHERS = ("auto", *ENGINES, *SCHEDULERS)
"""The values of [train] launcher."""


def find_engine(launcher: str, framework: Framework) -> Engine:
    """Returns the engine of [train] launcher: the default one for a batch scheduler, which only assigns nodes. Pure."""
    return ENGINES.get(launcher) or ENGINES[DEFAULT[framework]]


def check_launcher(name: str) -> str:
    """Returns [train] launcher unchanged. Pure. Raises ValueError for an unknown launcher."""
    if name not in LAUNCHERS:
        raise ValueError("must be one of: " + ", ".join(LAUNCHERS))
    return name
