def train(model, batches, optimizer):
    for x in batches:
        loss = model(x)
        if loss.item() > 10:
            continue
        loss.backward()
        optimizer.step()


def penalty(outputs, losses):
    losses["total"].backward()
