"""Requests nodes as a supervisor on the head does: `python -c THIS LAUNCHER REQUEST HOSTS HOW`.

Prints each report as a line of JSON. HOW: "cancel": cancel once the nodes are assigned; "die": exit then, like a
killed supervisor; "watch": wait until the scheduler ends the job.
"""

import asyncio
import glob
import json
import os
import sys

launcher, request, hosts, how = sys.argv[1:]
[code] = glob.glob(os.path.expanduser("~/.cluster/runtime/*/node/supervisor"))
sys.path.insert(0, code.removesuffix("/node/supervisor"))

from node import job_folder  # noqa: E402
from node.protocol import AllocationRequest, JobHost  # noqa: E402
from node.supervisor.allocation import Allocation  # noqa: E402
from node.tasks import Tasks  # noqa: E402
from train.engines.schedulers import SCHEDULERS  # noqa: E402

seen = set()


def tell(kind: str, value: object) -> None:
    seen.add(kind)
    sys.stdout.write(json.dumps([kind, value]) + "\n")
    sys.stdout.flush()


asked = AllocationRequest(**json.loads(request))
os.makedirs(job_folder.path(asked.job), exist_ok=True)


async def run() -> None:
    made = Allocation(
        SCHEDULERS[launcher],
        asked,
        [JobHost(**host) for host in json.loads(hosts)],
        Tasks(asyncio.get_running_loop(), lambda error: tell("fail", repr(error))),
        note=lambda number, reason: tell("note", [number, reason]),
        grant=lambda found: tell("grant", [host.name for host in found]),
        fail=lambda error: tell("fail", error),
        expire=lambda error: tell("fail", error),
        say=lambda text: tell("say", text),
    )
    made.start()
    while "fail" not in seen and ("grant" not in seen or how == "watch"):  # noqa: ASYNC110 - brief enough
        await asyncio.sleep(0.1)
    if "grant" in seen and how == "die":
        await asyncio.sleep(3.0)
        os._exit(1)
    tell("cancel", await made.cancel())


asyncio.run(run())
