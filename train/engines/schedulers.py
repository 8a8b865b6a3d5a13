"""The batch schedulers, by [train] launcher. To add one: a module like these, and a line here."""

from train.engines.pbs import PbsScheduler
from train.engines.scheduler import Scheduler
from train.engines.sge import SgeScheduler
from train.engines.slurm import SlurmScheduler

SCHEDULERS: dict[str, Scheduler] = {one.name: one for one in (SlurmScheduler(), SgeScheduler(), PbsScheduler())}
YARN_REASON = (
    "launch.py's yarn launcher needs dmlc-yarn.jar, which MXNet's wheels do not contain; use slurm, sge or pbs for a "
    "batch scheduler"
)
"""Why `--launcher yarn` is refused."""
