"""Does MXNet compute? ones((2,3))*2+1 on every GPU of every node, or on the processor where there is none."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from bootstrap.apply import ReadyNode
from bootstrap.connection import Output, quote_command
from bootstrap.side_by_side import on_all

TIMEOUT_S = 120.0

# Runs on the node. One JSON line for each device; the exit code says nothing, what is missing from the lines does.
PROGRAM = """
import json, sys
try:
    import mxnet as mx
except Exception as error:
    print(json.dumps({"device": "import mxnet", "error": str(error)}))
    sys.exit(0)
for context in [mx.gpu(i) for i in range(mx.context.num_gpus())] or [mx.cpu()]:
    try:
        values = (mx.nd.ones((2, 3), ctx=context) * 2 + 1).asnumpy().tolist()
        print(json.dumps({"device": str(context), "values": values, "version": mx.__version__}))
    except mx.base.MXNetError as error:
        print(json.dumps({"device": str(context), "error": str(error).splitlines()[0]}))
"""
EXPECTED = [[3.0, 3.0, 3.0], [3.0, 3.0, 3.0]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """One device of one node. `error` is None when it computed what it should."""

    node: str
    device: str
    mxnet: str | None
    error: str | None


def verify(nodes: Sequence[ReadyNode]) -> tuple[Verdict, ...]:
    """Try every device of every node, side by side. Raises ConnectError."""
    found: dict[str, tuple[Verdict, ...]] = {}

    def try_node(node: ReadyNode) -> None:
        output = node.connection.run(quote_command([node.python, "-c", PROGRAM]), check=False, timeout_s=TIMEOUT_S)
        found[node.host.name] = parse_verdicts(output, node=node.host.name, gpus=len(node.facts.gpus))

    on_all(nodes, try_node, name=lambda node: node.host.name)
    return tuple(verdict for node in nodes for verdict in found[node.host.name])


def parse_verdicts(output: Output, *, node: str, gpus: int) -> tuple[Verdict, ...]:
    """What the program's lines say; `gpus` is how many the driver reports. Pure."""
    verdicts = []
    for line in output.stdout.splitlines():
        if not line.startswith("{"):
            continue
        said = json.loads(line)
        error = said.get("error")
        if error is None and said["values"] != EXPECTED:
            error = f"ones((2,3))*2+1 came out as {said['values']}"
        verdicts.append(Verdict(node=node, device=said["device"], mxnet=said.get("version"), error=error))
    if not verdicts:
        last = (output.stderr.strip().splitlines() or ["no output"])[-1]
        error = f"MXNet ended with exit code {output.exit_code}: {last}"
        return (Verdict(node=node, device="mxnet", mxnet=None, error=error),)
    if all(verdict.error is None for verdict in verdicts) and gpus and verdicts[0].device.startswith("cpu"):
        error = f"the driver reports {gpus} GPU(s), and MXNet sees none"
        return (Verdict(node=node, device="gpu", mxnet=verdicts[0].mxnet, error=error),)
    return tuple(verdicts)
