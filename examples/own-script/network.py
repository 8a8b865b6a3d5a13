"""The network. train.py imports this module, which is copied to the nodes because it is in the same folder."""

from mxnet import gluon


def make_network(hidden):
    network = gluon.nn.HybridSequential()
    network.add(gluon.nn.Dense(hidden, activation="relu"), gluon.nn.Dense(4))
    return network
