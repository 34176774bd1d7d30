"""What MindSpore's own tools do to a prepared network; see ``fuzz`` and ``things_mindspore``."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path

import mindspore as ms
import numpy as np
from fuzz import fresh, main, no_more_than_rounding
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops
from things_mindspore import WORLD, apart, dataset, gradients, loss_of, thing

__all__ = ["WORLD", "thing"]


def step_by(run, loss_fn):
    """Take the step with another loss function, which should be the same."""
    clip, micro = run.case.clip, run.case.micro
    run.amp.step(loss_fn, *run.batch, clip_norm=clip, micro_batches=micro)


# --- The network


@thing()
def train_mode_turned(run):
    run.model.set_train(False)
    run.model.set_train(True)


@thing()
def values_set_back(run):
    for param in run.model.get_parameters():
        param.set_data(param.value().copy())


@thing()
def values_set_in_float32(run):
    for param in run.model.trainable_params():
        param.set_data(Tensor(run.amp.weights().get(param.name, param.asnumpy())))


@thing()
def parameter_exchanged(run):
    layer = run.model.fc2
    layer.weight = Parameter(layer.weight.value().copy(), name="fc2.weight")


@thing()
def cell_inserted(run):
    run.model.insert_child_to_cell("extra", nn.ReLU())


@thing()
def cell_deleted(run):
    del run.model[3]


@thing()
def child_cell_exchanged(run):
    run.model._cells["fc2"] = nn.Dense(16, 4)


@thing()
def gradient_flag_turned(run):
    run.model.set_grad(True)
    run.model.set_grad(False)


@thing()
def jit_of_the_construct(run):
    run.model.construct = ms.jit(run.model.construct)


@thing()
def jit_of_a_layer(run):
    run.model.fc1.construct = ms.jit(run.model.fc1.construct)


@thing()
def jit_configured(run):
    run.model.set_jit_config(ms.JitConfig(jit_level="O0"))


@thing()
def loss_compiled(run):
    here, there = fresh(run), fresh(run)
    here.step()
    step_by(there, ms.jit(there.loss_fn))
    no_more_than_rounding(here, there)


@thing()
def renamed_one(run):
    run.model.fc1.weight.name = "encoder.weight"


@thing()
def backward_hook(run):
    run.model.fc2.register_backward_hook(lambda cell, gave, got: None)


@thing()
def pre_hook(run):
    run.model.fc2.register_forward_pre_hook(lambda cell, args: args)


@thing()
def to_float_full(run):
    run.model.to_float(ms.float32)


@thing()
def weights_flattened(run):
    run.model.flatten_weights()


@thing(fits=lambda case: case.model == "mlp")
def saliency(run):
    run.model.set_train(False)
    with run.amp.autocast():
        ms.grad(lambda x: run.model(x).astype(ms.float32).sum())(run.batch[0])
    run.model.set_train(True)


@thing(trains=True)
def called_inside_another_cell(run):
    class Around(nn.Cell):
        def __init__(self, net):
            super().__init__()
            self.net = net

        def construct(self, x):
            return self.net(x)

    step_by(run, loss_of(Around(run.model)))


@thing(trains=True)
def called_inside_a_sequential(run):
    step_by(run, loss_of(nn.SequentialCell(run.model)))


@thing()
def layer_frozen(run):
    new = apart(run)
    new.model.fc1.weight.requires_grad = False
    before = new.amp.weights()["fc1.weight"]
    new.step()
    assert np.array_equal(before, new.amp.weights()["fc1.weight"]), "it is frozen, it moved"


# --- Gradients that do not reach it


@thing()
def loss_under_stop_gradient(run):
    def stopped(x, y, boost):
        logits = ops.stop_gradient(run.model(x))
        return ops.cross_entropy(logits.astype(ms.float32), y) * boost.max()

    run.amp.step(stopped, *run.batch)


@thing()
def loss_all_under_stop_gradient(run):
    run.amp.step(lambda *batch: ops.stop_gradient(run.loss_fn(*batch)), *run.batch)


@thing()
def loss_of_numbers(run):
    run.amp.step(lambda *batch: Tensor(run.loss_fn(*batch).asnumpy()), *run.batch)


# --- The optimizer


@thing()
def parameters_of_the_optimizer_exchanged(run):
    here, there = fresh(run), fresh(run)
    params = list(there.optimizer.parameters)
    params[0] = Parameter(params[0].value().copy(), name=params[0].name)
    there.optimizer.parameters = ParameterTuple(params)
    here.step()
    there.step()
    others = there.amp.weights()
    for name, value in here.amp.weights().items():
        assert np.array_equal(others[name], value), f"{name} did not move"


@thing()
def slots_set_back(run):
    for param in run.optimizer.get_parameters():
        param.set_data(param.value().copy())


@thing(trains=True)
def construct_of_the_optimizer(run):
    run.optimizer.construct(gradients(run))


@thing(trains=True)
def optimizer_deep_inside(run):
    found = gradients(run)
    nn.SequentialCell(run.optimizer)(found)


@thing(trains=True)
def applied_by_experimental(run):
    other = ms.experimental.optim.Adam(run.model.trainable_params(), lr=1e-2)
    _, found = ms.value_and_grad(run.loss_fn, None, run.model.trainable_params())(*run.batch)
    other(found)


@thing(trains=True)
def batch_of_arrays(run):
    clip, micro = run.case.clip, run.case.micro
    batch = [part.asnumpy() for part in run.batch]
    run.amp.step(run.loss_fn, *batch, clip_norm=clip, micro_batches=micro)


# --- What people do in the middle of a run


@thing()
def checkpoint_loaded_into_the_network(run):
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "net.ckpt"))
        ms.save_checkpoint(run.model, path)
        ms.load_checkpoint(path, net=run.model)


@thing()
def checkpoint_of_the_optimizer(run):
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "slots.ckpt"))
        ms.save_checkpoint(run.optimizer, path)
        ms.load_param_into_net(run.optimizer, ms.load_checkpoint(path))


@thing(fits=lambda case: case.model == "mlp")  # the other assigns its mean in evaluation too
def model_evaluates_and_predicts(run):
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    outer = ms.Model(run.model, loss, metrics={"accuracy"})
    outer.eval(dataset(run), dataset_sink_mode=False)
    outer.predict(run.batch[0])
    run.model.set_train(True)


@thing()
def mode_set_again(run):
    ms.set_context(mode=ms.get_context("mode"))


@thing()
def assigned_to_itself(run):
    for param in run.model.get_parameters():
        if param.name not in run.amp.weights() or not run.case.policy.startswith("model"):
            ops.assign(param, param.value())


@thing()
def rate_read(run):
    run.optimizer.get_lr()
    run.optimizer.get_lr_parameter(run.optimizer.parameters)


@thing()
def seeds_set(run):
    ms.set_seed(5)
    np.random.seed(5)  # noqa: NPY002, as people do


@thing()
def copied_shallow(run):
    copy.copy(run.model)


@thing()
def applied_to_all_cells(run):
    run.model.apply(lambda cell: None)
    run.model.init_parameters_data()


@thing(trains=True)
def parameters_cloned_and_trained(run):
    held = run.model.trainable_params()
    cloned = ParameterTuple(held).clone(prefix="cloned")
    other = nn.SGD(list(cloned), 0.05)
    other(tuple(ops.ones_like(param) for param in cloned))
    run.step()  # the network must not have noticed
    run.index -= 1


if __name__ == "__main__":
    main(WORLD, thing)
