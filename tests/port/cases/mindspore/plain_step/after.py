import mindspore as ms
from mindspore import nn
import mpcore_port_runtime as port

model = nn.Dense(4, 1)
criterion = nn.MSELoss()
optimizer = port.Adam(port.parameters(model), lr=1e-3)


def train(batches):
    model.set_train()
    total = 0.0
    for x, y in batches:
        port.zero_grad(optimizer)
        # forward
        pred = None
        def forward():
            nonlocal pred
            pred = model(x)
            loss = criterion(pred, y)
            return loss
        loss = port.loss(forward, model, criterion)
        loss.backward()
        port.step(optimizer)
        total += loss.item() * pred.shape[0]
    return total
