import mindspore as ms
from mindspore.experimental import optim
from mindspore import nn

model = nn.Dense(4, 1)
criterion = nn.MSELoss()
optimizer = optim.AdamW(model.trainable_params(), lr=1e-3, weight_decay=0.0)


def train(batches):
    model.set_train()
    total = 0.0

    def forward_fn(x, y):
        # forward
        pred = model(x)
        loss = criterion(pred, y)
        return loss, pred

    grad_fn = ms.value_and_grad(forward_fn, None, optimizer.parameters, has_aux=True)

    def train_step(x, y):
        (loss, pred), grads = grad_fn(x, y)
        optimizer(grads)
        return loss, pred

    for x, y in batches:
        loss, pred = train_step(x, y)
        total += loss.item() * pred.shape[0]
    return total
