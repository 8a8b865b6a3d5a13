"""Does PyTorch compute here? ones((2,3))*2+1 on every GPU, or on the CPU if PyTorch sees no GPU.

The environment's Python runs it. It prints JSON lines: {"wheel": ..., "version": ...} once PyTorch is imported, then
for each device {"trying": ...} and {"device": ..., "values": ...} or {"device": ..., "error": ...}. If PyTorch cannot
be imported, the process ends with Python's traceback on stderr.

Python 3.6 and later, standard library only, except for PyTorch.
"""

import json


def tell(**said):
    """Prints one line of JSON to stdout."""
    print(json.dumps(said), flush=True)


def main():
    """Computes on every device."""
    import torch

    tell(wheel="torch==%s" % torch.__version__, version=str(torch.__version__))
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for device in ["cuda:%d" % i for i in range(count)] or ["cpu"]:
        tell(trying=device)
        try:
            values = (torch.ones((2, 3), device=device) * 2 + 1).tolist()
            # JSON has neither nan nor inf, which a faulty device may compute.
            values = [[value if abs(value) < float("inf") else str(value) for value in row] for row in values]
        except RuntimeError as error:
            tell(device=device, error=str(error))
        else:
            tell(device=device, values=values)
