"""Does the framework compute here? ones((2,3))*2+1 on every GPU, or on the CPU if it sees no GPU.

The environment's Python runs it. Order, over stdin: {"framework": "mxnet" or "pytorch"}. It prints JSON lines:
{"wheel": ...} as pip names it, {"version": ...} once the framework is imported, then for each device {"trying": ...}
and {"device": ..., "values": ...} or {"device": ..., "error": ...}. If the framework cannot be imported, the process
ends with Python's traceback on stderr.

Python 3.6 and later, standard library only, except for the framework.
"""

import glob
import json
import os
import sys
import sysconfig


def report(**message):
    """Prints one line of JSON to stdout."""
    print(json.dumps(message), flush=True)


def use_mxnet():
    """The devices, a function that computes on one, and the error that it may raise."""
    for path in glob.glob(os.path.join(sysconfig.get_paths()["purelib"], "mxnet*.dist-info"))[:1]:
        name, _, version = os.path.basename(path)[: -len(".dist-info")].partition("-")
        report(wheel="%s==%s" % (name.replace("_", "-"), version))
    import mxnet as mx

    report(version=mx.__version__)
    devices = [mx.gpu(i) for i in range(mx.context.num_gpus())] or [mx.cpu()]
    return devices, lambda context: (mx.nd.ones((2, 3), ctx=context) * 2 + 1).asnumpy(), mx.base.MXNetError


def use_torch():
    """As use_mxnet."""
    import torch

    report(wheel="torch==%s" % torch.__version__, version=str(torch.__version__))
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    devices = ["cuda:%d" % i for i in range(count)] or ["cpu"]
    return devices, lambda device: torch.ones((2, 3), device=device) * 2 + 1, RuntimeError


def main():
    """Computes on every device."""
    framework = json.loads(sys.stdin.buffer.readline().decode("utf-8"))["framework"]
    devices, compute, expected_error = use_mxnet() if framework == "mxnet" else use_torch()
    for device in devices:
        report(trying=str(device))
        try:
            values = compute(device).tolist()
            # JSON has neither nan nor inf, which a faulty device may compute.
            values = [[value if abs(value) < float("inf") else str(value) for value in row] for row in values]
        except expected_error as error:
            report(device=str(device), error=str(error))
        else:
            report(device=str(device), values=values)
