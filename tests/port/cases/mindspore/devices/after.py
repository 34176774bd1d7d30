import mindspore as ms
import mpcore_port_runtime as port
# mpcore port: removed: torch.backends.cudnn.benchmark = True (a switch of torch's kernels; MindSpore has none)
# mpcore port: removed: torch.cuda.empty_cache() (MindSpore returns memory by itself)


def move(batch, model, dtype):
    x = batch["x"]
    y = batch["y"].to(ms.int64)
    z = batch["z"].to(dtype)
    w = port.to(batch["w"], batch["other"])
    return model(x), y, z, w
