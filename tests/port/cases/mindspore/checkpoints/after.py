import mindspore as ms
import mpcore_port_runtime as port


def save(path, model, optimizer, scaler, epoch):
    port.save(
        {
            "model": port.state_dict(model),
            "optimizer": port.state_dict(optimizer),
            "scaler": port.state_dict(scaler),
            "epoch": epoch,
        },
        path,
    )


def load(path, model, optimizer, scaler):
    state = port.load(path)
    port.load_state_dict(model, state["model"])
    port.load_state_dict(optimizer, state["optimizer"])
    port.load_state_dict(scaler, state["scaler"])
    return state["epoch"]
