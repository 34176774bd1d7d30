def train(model, batches, optimizer):
    for x in batches:
        loss = model(x)
        if loss.item() > 10:
            continue
        loss.backward()
        optimizer.step()


def penalty(outputs, losses):
    losses["total"].backward()


def apex_late(model, batches, optimizer):
    from apex import amp

    for step, x in enumerate(batches):
        loss = model(x).mean()
        number = step % 2
        with amp.scale_loss(loss, optimizer, loss_id=number) as scaled:
            scaled.backward()
