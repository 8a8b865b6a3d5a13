"""Events from the log of a job with one worker on each node."""

from node.protocol import JobResult, JobState
from train.follow.events import Event, Process


def worker(rank: int, *, exit_code: int | None = None) -> Process:
    return Process(number=rank, role="worker", host=f"node-{rank}", rank=rank, pid=100 + rank, exit_code=exit_code)


def state(value: JobState, *, at: float = 100.0) -> Event:
    return Event(kind="state", at=at, state=value)


def warnings(*texts: str) -> Event:
    return Event(kind="warnings", at=103.0, warnings=texts)


def line(text: str, rank: int = 0, *, at: float = 101.0) -> Event:
    return Event(kind="line", at=at, process=worker(rank), text=text)


def bar(text: str, rank: int = 0, *, at: float = 102.0) -> Event:
    return Event(kind="bar", at=at, process=worker(rank), text=text)


def speed(rank: int, batch: int, samples_per_s: float, *, at: float = 102.0) -> Event:
    text = f"Epoch[0] Batch [0-{batch}]\tSpeed: {samples_per_s} samples/sec\taccuracy=0.25\tcross-entropy=0.125"
    return line(text, rank, at=at)


def result(at: float = 223.0) -> Event:
    outcome = JobResult(state="done", exit_code=0, error=None, left={})
    return Event(kind="result", at=at, result=outcome, state="done")
