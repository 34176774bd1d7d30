import math
import sys

import mindspore as ms
import mpcore_port_runtime as port


def train_one_epoch(model, criterion, loader, optimizer, device, loss_scaler, accum_iter):
    port.zero_grad(optimizer)
    for step, (samples, targets) in enumerate(loader):
        outputs = loss_value = None
        def forward():
            nonlocal outputs, loss_value
            with port.autocast():
                outputs = model(samples)
                loss = criterion(outputs, targets)
            loss_value = loss.item()
            if not math.isfinite(loss_value):
                sys.exit(1)
            loss /= accum_iter
            return loss
        loss = port.loss(forward, model, criterion)
        loss_scaler(loss, optimizer, parameters=port.parameters(model))
        if (step + 1) % accum_iter == 0:
            port.zero_grad(optimizer)
        print(loss_value, outputs.shape[0])
