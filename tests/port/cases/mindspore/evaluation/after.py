import mindspore as ms
import mpcore_port_runtime as port


@port.no_grad()
def evaluate(model, loader):
    model.set_train(False)
    correct = 0
    for x, y in loader:
        correct += (model(x).argmax(1) == y).sum().item()
    model.set_train(True)
    return correct / len(loader.dataset)
