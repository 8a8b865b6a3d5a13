"""The batch schedulers, by [train] launcher. To add one, add a module like these and a line here."""

from train.engines.pbs import PbsScheduler
from train.engines.scheduler import Scheduler
from train.engines.sge import SgeScheduler
from train.engines.slurm import SlurmScheduler

SCHEDULERS: dict[str, Scheduler] = {one.name: one for one in (SlurmScheduler(), SgeScheduler(), PbsScheduler())}
