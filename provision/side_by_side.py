"""Several reads at once: each call to AWS takes 100 to 300 ms, and few of them wait for each other."""

from concurrent.futures import ThreadPoolExecutor

MAX_THREADS = 8
"""botocore keeps ten connections for each client; more threads would wait for each other there."""


def reading_pool() -> ThreadPoolExecutor:
    """For `with`: its end waits for everything that was submitted, and raises nothing.

    Ask for the results behind it, in the order of submission: then the same trouble always gives the same message,
    whichever read was faster.
    """
    return ThreadPoolExecutor(max_workers=MAX_THREADS, thread_name_prefix="aws-read")
