"""Does MXNet compute here? ones((2,3))*2+1 on every GPU, or on the processor where MXNet sees none.

Run by the environment's Python. JSON lines: {"wheel": ...} as pip names it, {"version": ...} once MXNet is imported,
then for each device {"trying": ...} and {"device": ..., "values": ...} or {"device": ..., "error": ...}. An error that
keeps MXNet from being imported ends the process, with Python's traceback on stderr.

Python 3.6 and later, standard library only, but for MXNet.
"""

import glob
import json
import os
import sysconfig


def tell(**said):
    """One line on stdout."""
    print(json.dumps(said), flush=True)


def find_wheel():
    """The installed wheel, such as mxnet-cu90==1.6.0.post0; None without MXNet."""
    found = glob.glob(os.path.join(sysconfig.get_paths()["purelib"], "mxnet*.dist-info"))
    for path in found:
        name, _, version = os.path.basename(path)[: -len(".dist-info")].partition("-")
        return "%s==%s" % (name.replace("_", "-"), version)
    return None


def main():
    """Compute everywhere."""
    tell(wheel=find_wheel())
    import mxnet as mx

    tell(version=mx.__version__)
    for context in [mx.gpu(i) for i in range(mx.context.num_gpus())] or [mx.cpu()]:
        tell(trying=str(context))
        try:
            values = (mx.nd.ones((2, 3), ctx=context) * 2 + 1).asnumpy().tolist()
            # JSON has no nan and inf, which a faulty device may compute.
            values = [[value if abs(value) < float("inf") else str(value) for value in row] for row in values]
        except mx.base.MXNetError as error:
            tell(device=str(context), error=str(error))
        else:
            tell(device=str(context), values=values)
