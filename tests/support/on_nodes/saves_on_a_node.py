"""Saves and loads every kind of file of MXNet's Python interface. Its argument is a folder, with a trailing slash.

Prints "SAVED KIND ok" for each kind of file whose content is the same after loading.
"""

import sys

import mxnet as mx

folder = sys.argv[1]


def report(kind: str, *, is_right: bool = True) -> None:
    """Prints the result for a kind of file. is_right: where the absence of an error is not enough."""
    sys.stdout.write(f"SAVED {kind} {'ok' if is_right else 'WRONG'}\n")


def make_module(weight: float) -> mx.mod.Module:
    """A network with all weights at this value."""
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3, name="fc")
    module = mx.mod.Module(mx.sym.SoftmaxOutput(net, name="softmax"))
    module.bind([("data", (2, 4))], [("softmax_label", (2,))])
    module.init_params(mx.init.Constant(weight))
    module.init_optimizer("local", "sgd", (("momentum", 0.9),))
    return module


def find_weight(prefix: str) -> float:
    """A weight of the checkpoint of epoch 1."""
    _, arguments, _ = mx.model.load_checkpoint(prefix, 1)
    return float(arguments["fc_weight"].asnumpy()[0, 0])


def save_modules() -> None:
    """Saves with mx.mod, mx.model and mx.callback."""
    prefix = folder + "module"
    module = make_module(1)
    mx.callback.module_checkpoint(module, prefix, save_optimizer_states=True)(0)
    report("Module.save_checkpoint", is_right=find_weight(prefix) == 1)
    make_module(2).save_checkpoint(prefix, 1)
    report("overwritten", is_right=find_weight(prefix) == 2)
    module.load_optimizer_states(prefix + "-0001.states")
    report("optimizer states")
    arguments, auxiliary = make_module(3).get_params()
    mx.callback.do_checkpoint(folder + "callback")(0, module.symbol, arguments, auxiliary)
    report("do_checkpoint", is_right=find_weight(folder + "callback") == 3)
    report("symbol", is_right=mx.sym.load(prefix + "-symbol.json").tojson() == module.symbol.tojson())


def save_arrays() -> None:
    """Saves with mx.nd."""
    for value in (1, 2):  # the second one overwrites a file that was read
        mx.nd.save(folder + "arrays", {"a": mx.nd.full((2, 2), value)})
        report(f"nd.save {value}", is_right=(mx.nd.load(folder + "arrays")["a"].asnumpy() == value).all())
    mx.nd.save(folder + "a b#1;2", [mx.nd.ones(1)])
    report("odd characters", is_right=len(mx.nd.load(folder + "a b#1;2")) == 1)


def save_gluon() -> None:
    """Saves with mx.gluon."""
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Dense(3, in_units=4))
    net.initialize(mx.init.One())
    net.hybridize()
    data = mx.nd.ones((1, 4))
    wanted = net(data).asnumpy()
    net.save_parameters(folder + "gluon.params")
    net.initialize(mx.init.Zero(), force_reinit=True)
    net.load_parameters(folder + "gluon.params")
    report("save_parameters", is_right=(net(data).asnumpy() == wanted).all())
    net.export(folder + "exported", epoch=3)
    block = mx.gluon.SymbolBlock.imports(folder + "exported-symbol.json", ["data"], folder + "exported-0003.params")
    report("export", is_right=(block(data).asnumpy() == wanted).all())
    trainer = mx.gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.1})
    with mx.autograd.record():
        loss = net(data).sum()
    loss.backward()
    trainer.step(1)
    trainer.save_states(folder + "trainer.states")
    trainer.load_states(folder + "trainer.states")
    report("Trainer.save_states")


def save_records() -> None:
    """Saves with mx.recordio."""
    path = folder + "records"
    records = [b"record %d" % number for number in range(5)]
    writer = mx.recordio.MXIndexedRecordIO(path + ".idx", path + ".rec", "w")
    for number, record in enumerate(records):
        writer.write_idx(number, record)
    writer.close()
    dataset = mx.gluon.data.RecordFileDataset(path + ".rec")
    report("MXIndexedRecordIO", is_right=[dataset[at] for at in range(5)] == records)


save_modules()
save_arrays()
save_gluon()
save_records()
unclosed = mx.recordio.MXRecordIO(folder + "unclosed.rec", "w")
unclosed.write(b"the last record")
