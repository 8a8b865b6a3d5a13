"""Detects jobs whose workers do not use their kv-store, so that each trains a separate model, usually by mistake."""

from node.protocol import Order


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
