from mxnet.gluon import nn


def make_net():
    net = nn.HybridSequential()
    net.add(nn.Conv2D(4, 3, activation="relu"), nn.Flatten(), nn.Dense(2))
    return net
