"""Launches a config's workers, as Ray's monitor does on the head, until all are set up. Ray's own Python runs this.

https://github.com/ray-project/ray/blob/ray-2.60.0/python/ray/autoscaler/_private/monitor.py
"""

import sys
import time
from pathlib import Path

import yaml
from ray.autoscaler._private import commands
from ray.autoscaler._private.autoscaler import StandardAutoscaler
from ray.autoscaler._private.constants import AUTOSCALER_UPDATE_INTERVAL_S
from ray.autoscaler._private.load_metrics import LoadMetrics
from ray.autoscaler.tags import NODE_KIND_WORKER, STATUS_UP_TO_DATE, TAG_RAY_NODE_KIND, TAG_RAY_NODE_STATUS

TIMEOUT_S = 300.0


def main() -> None:
    """Updates the autoscaler until all workers are up."""
    # The config that `ray up` completes and copies to the head.
    config = commands._bootstrap_config(yaml.safe_load(Path(sys.argv[1]).read_text()))  # noqa: SLF001 - the head's config
    autoscaler = StandardAutoscaler(lambda: config, LoadMetrics(), None, session_name="bench")
    wanted = config["available_node_types"]["worker"]["min_workers"]
    give_up_at = time.monotonic() + TIMEOUT_S
    while True:
        autoscaler.update()
        provider = autoscaler.provider
        workers = provider.non_terminated_nodes({TAG_RAY_NODE_KIND: NODE_KIND_WORKER})
        tags = [provider.node_tags(worker) for worker in workers]
        if sum(each.get(TAG_RAY_NODE_STATUS) == STATUS_UP_TO_DATE for each in tags) == wanted:
            return
        if time.monotonic() > give_up_at:
            sys.exit(f"the workers are not up after {TIMEOUT_S:.0f} s: {tags}")
        time.sleep(AUTOSCALER_UPDATE_INTERVAL_S)


if __name__ == "__main__":
    main()
