import mindspore as ms
import mpcore_port_runtime as port
from mindspore import ops


def reduce_mean(value, world):
    total = ops.stop_gradient(value.copy())
    port.all_reduce(total, op='sum')
    return total / world


def train(model, loader, optimizer, world):

    def forward_fn(x, y):
        loss = ops.mse_loss(model(x), y)
        return loss

    grad_fn = ms.value_and_grad(forward_fn, None, optimizer.parameters)

    def train_step(x, y):
        loss, grads = grad_fn(x, y)
        optimizer(grads)
        return loss

    for x, y in loader:
        loss = train_step(x, y)
        print(reduce_mean(loss, world).item())
