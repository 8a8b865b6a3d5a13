"""The ways to start a job's processes, by [train] launcher. To add one: a module like these, and a line here."""

from train.engines.engine import Engine
from train.engines.launch_py import LocalLaunchPy, SshLaunchPy
from train.engines.mpi import MpiLaunchPy

ENGINES: dict[str, Engine] = {engine.name: engine for engine in (SshLaunchPy(), LocalLaunchPy(), MpiLaunchPy())}
