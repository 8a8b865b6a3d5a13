"""The batch schedulers, by [train] launcher. To add one, add a module like these and a line here."""

from node.engines.pbs import PbsScheduler
from node.engines.scheduler import Scheduler
from node.engines.sge import SgeScheduler
from node.engines.slurm import SlurmScheduler

SCHEDULERS: dict[str, Scheduler] = {one.name: one for one in (SlurmScheduler(), SgeScheduler(), PbsScheduler())}
