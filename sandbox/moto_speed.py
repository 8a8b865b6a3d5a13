"""What moto looks up anew for every call, and what stays the same for as long as the process runs.

Of the time of a call to its EC2 these are a quarter: it lists its own folder, twice, and inspects its own class.
"""

from functools import cache

from moto import backends
from moto.core import responses, utils

_list_modules = backends.list_of_moto_modules


@cache
def _modules() -> tuple[str, ...]:
    return tuple(_list_modules())


_method_names = cache(utils.method_names_from_class)


def install() -> None:
    """Puts what remembers in the place of moto's own functions, for the whole process."""
    backends.list_of_moto_modules = _modules
    responses.method_names_from_class = _method_names  # type: ignore[attr-defined]  # it is imported there
