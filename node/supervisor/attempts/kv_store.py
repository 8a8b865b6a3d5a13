"""Detects jobs whose workers do not use their kv-store, so that each trains a separate model, usually by mistake."""

import re

from node.protocol import Order

# Lines that training loops print: Speedometer's, "Epoch[3] Time cost=1.2", "[Epoch 3] loss: 0.3".
PROGRESS = re.compile(r"(?i)\d samples/s|\b(?:epoch|iter)[:\s\[]*\d+\b.*\d\.\d")


def is_progress(line: str) -> bool:
    """Whether a line of a worker reports training progress."""
    # The first test is fast: most lines do not, and there may be very many.
    return ("poch" in line or "samples/s" in line or "Iter[" in line) and PROGRESS.search(line[:2000]) is not None


def is_reported(order: Order) -> bool:
    """Whether workers report that they create a dist kv-store: PS_VERBOSE does so unless the user disables it."""
    return {**order.env, **order.env_worker}.get("PS_VERBOSE", "1") in ("1", "2")


def render_unused(order: Order, *, has_trained: bool) -> str:
    """Returns the warning that a job's workers are independent. has_trained: whether they have reported progress."""
    workers = order.spec.workers
    if has_trained:
        what = f"{workers} workers trained {workers} separate models"
    else:
        what = f"no worker connected to the servers, so the {workers} workers were independent"
    return (
        f"{what}: the script did not use a dist kv-store. Pass --kv-store {order.train.kv_store} (some scripts call it "
        "--kvstore), which it must give to mx.kv.create or its trainer"
    )
