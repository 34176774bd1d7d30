import mpcore_port_runtime as port
port.record()
def train(model, batches, optimizer):
    for x in batches:
        def forward():
            loss = model(x)
            return loss
        loss = port.loss(forward, model)
        if loss.item() > 10:
            continue
        loss.backward()
        port.step(optimizer)


def penalty(outputs, losses):
    losses["total"].backward()


def apex_late(model, batches, optimizer):
    pass

    for step, x in enumerate(batches):
        loss = model(x).mean()
        number = step % 2
        with port.apex.scale_loss(loss, optimizer, loss_id=number) as scaled:
            scaled.backward()
