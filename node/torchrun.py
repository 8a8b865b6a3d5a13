"""Runs PyTorch's own torchrun, unchanged, from the installed package.

    torchrun ARGUMENTS...

It makes one correction: PyTorch 1.13 on Python 3.11, as in Debian 12, treats its default `--redirects 0` as None and
fails, because iteration over an enum.Flag omits the value 0 there.
"""

import sys
from typing import Any


def main() -> None:
    """Runs torchrun with this program's arguments."""
    from torch.distributed import run  # noqa: PLC0415 - the head's other programs do not need PyTorch
    from torch.distributed.elastic.multiprocessing import Std  # noqa: PLC0415

    if Std.from_str("0") is None:
        from_str = Std.from_str

        def corrected(words: str) -> Any:
            return Std(0) if words == "0" else from_str(words)

        Std.from_str = corrected
    run.main(sys.argv[1:])
