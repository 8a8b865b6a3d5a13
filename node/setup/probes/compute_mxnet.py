"""Does MXNet compute here? ones((2,3))*2+1 on every GPU, or on the CPU if MXNet sees no GPU.

The environment's Python runs it. It prints JSON lines: {"wheel": ...} as pip names it, {"version": ...} once MXNet is
imported, then for each device {"trying": ...} and {"device": ..., "values": ...} or {"device": ..., "error": ...}. If
MXNet cannot be imported, the process ends with Python's traceback on stderr.

Python 3.6 and later, standard library only, except for MXNet.
"""

import glob
import json
import os
import sysconfig


def tell(**said):
    """Prints one line of JSON to stdout."""
    print(json.dumps(said), flush=True)


def find_wheel():
    """The installed wheel, such as mxnet-cu90==1.6.0.post0; None without MXNet."""
    found = glob.glob(os.path.join(sysconfig.get_paths()["purelib"], "mxnet*.dist-info"))
    for path in found:
        name, _, version = os.path.basename(path)[: -len(".dist-info")].partition("-")
        return "%s==%s" % (name.replace("_", "-"), version)
    return None


def main():
    """Computes on every device."""
    tell(wheel=find_wheel())
    import mxnet as mx

    tell(version=mx.__version__)
    for context in [mx.gpu(i) for i in range(mx.context.num_gpus())] or [mx.cpu()]:
        tell(trying=str(context))
        try:
            values = (mx.nd.ones((2, 3), ctx=context) * 2 + 1).asnumpy().tolist()
            # JSON has neither nan nor inf, which a faulty device may compute.
            values = [[value if abs(value) < float("inf") else str(value) for value in row] for row in values]
        except mx.base.MXNetError as error:
            tell(device=str(context), error=str(error))
        else:
            tell(device=str(context), values=values)
