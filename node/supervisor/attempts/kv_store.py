"""Detects jobs whose workers do not use their kv-store, so that each trains a separate model, usually by mistake."""

import re

from node.protocol import Order

# Lines that training loops print: Speedometer's, "Epoch[3] Time cost=1.2", "[Epoch 3] loss: 0.3".
PROGRESS = re.compile(r"(?i)\d samples/s|\b(?:epoch|iter)[:\s\[]*\d+\b.*\d\.\d")
OPTION = re.compile(r"(--kv[-_]?store)(?:(?:=|\s+)['\"]?(\w+))?")
SCRIPT = re.compile(r"[^\s'\"]+\.py\b")
SCRIPT_BYTES = 1 << 20


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
    return f"{what}: the script did not use a dist kv-store. {_advise(order)}"


def _advise(order: Order) -> str:
    wanted = order.train.kv_store
    words = " ".join(order.spec.command)
    given = OPTION.findall(words)
    if given and given[-1][1].startswith("dist"):
        create = "mx.kv.create, to Module.fit or to gluon.Trainer"
        return f"It got {' '.join(given[-1])}, and must pass that to {create}"
    if given and given[-1][1]:
        return f"Pass {given[-1][0]} {wanted} instead of {given[-1][1]}"
    options = [option for option, _ in given]
    options += [option for place in SCRIPT.findall(words) for option in _options_of(order.find_placed(place))]
    if options:
        return f"Pass {options[0]} {wanted}"
    return f"Pass --kv-store {wanted} (some scripts call it --kvstore)"


def _options_of(script: str) -> list[str]:
    """Returns the options for a kv-store in a script's text."""
    try:
        with open(script, "rb") as stream:
            text = stream.read(SCRIPT_BYTES).decode("utf-8", "replace")
    except OSError:  # such as a path relative to another folder, after `cd`
        return []
    return re.findall(r"['\"](--kv[-_]?store)['\"]", text)
