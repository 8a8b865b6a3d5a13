"""Runs MXNet's own tools/bandwidth/measure.py, unchanged from the wheel.

measure.py needs a GPU, and a network from a folder of MXNet's sources that no wheel contains. This program provides one
of this project's networks, and a CPU if there is no GPU. It passes on its arguments, and adds --network and --gpus (all
GPUs). Every process of the job runs it; servers and the scheduler never return from `import mxnet`.
"""

import os
import runpy
import sys
import types
from typing import Any

CODE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SCRIPTS = os.path.join(CODE, "train", "scripts")
NETWORK = "resnet"  # the module that measure.py imports for it


def main() -> None:
    """Runs measure.py with this process's arguments."""
    import mxnet as mx  # noqa: PLC0415 - does not return in a server or scheduler

    sys.path.insert(0, SCRIPTS)
    module = types.ModuleType(NETWORK)
    module.get_symbol = get_symbol  # type: ignore[attr-defined]
    sys.modules[NETWORK] = module
    gpus = mx.context.num_gpus()
    if not gpus:
        mx.gpu = mx.cpu
    devices = ",".join(str(number) for number in range(gpus or 1))
    program = os.path.join(os.path.dirname(mx.__file__), "tools", "bandwidth", "measure.py")
    if not os.path.exists(program):
        sys.exit(f"this MXNet has no {program}: it was not installed from a wheel")
    sys.argv = [program, *sys.argv[1:], "--network", NETWORK, "--gpus", devices]
    runpy.run_path(program, run_name="__main__")


def get_symbol(image_shape: str, num_layers: int, num_classes: int) -> Any:
    """Builds the network: the function that measure.py expects in a module. image_shape: such as "3,224,224"."""
    from networks import build  # noqa: PLC0415 - needs sys.path from main

    shape = tuple(int(size) for size in image_shape.split(","))
    return build(NETWORK, num_layers, num_classes, shape)


if __name__ == "__main__":
    main()
