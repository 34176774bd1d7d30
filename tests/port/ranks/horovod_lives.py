"""Networks trained through horovod, each in another way; what became of them in ``made``."""

import horovod.torch as hvd
import torch
from torch import nn
from torch.nn import functional

hvd.init()
made = []


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Linear(4, 5)
        self.two = nn.Linear(5, 2)

    def forward(self, x):
        return self.two(torch.tanh(self.one(x)))


def network():
    """Return a network that differs from process to process until rank 0's is broadcast."""
    net = Net()
    for p in net.parameters():
        p.data.copy_(torch.linspace(-1.0, 0.83 + 0.1 * hvd.rank(), p.numel()).view(p.shape))
    return net


def batch(number):
    x = torch.linspace(-1.1, 1.3 + number % 3 + hvd.rank(), 24).view(6, 4)
    return x, torch.sin(3 * x[:, :2])


def followed(net, optimizer, schedule, passes):
    for step in range(4):
        optimizer.zero_grad()
        for part in range(passes):
            x, y = batch(step * passes + part)
            loss = functional.mse_loss(net(x), y) / passes
            loss.backward()
        optimizer.step()
        schedule.step()
        made.append(hvd.allreduce(loss.detach(), name="loss").item())
    for p in net.parameters():
        made.extend(p.detach().reshape(-1).tolist())


def in_order(kind, before, behind, passes=1, op=hvd.Average, compression=hvd.Compression.none):
    """Broadcast what an optimizer of some kind holds before it is wrapped, and behind that."""
    net = network()
    if kind == "sgd":
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, weight_decay=0.2)
    elif kind == "momentum":
        optimizer = torch.optim.SGD(
            net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.2, dampening=0.3
        )
    elif kind == "adam":
        optimizer = torch.optim.Adam(net.parameters(), lr=0.05, weight_decay=0.1)
    else:
        optimizer = torch.optim.RMSprop(net.parameters(), lr=0.01, momentum=0.5)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
    if before:
        hvd.broadcast_parameters(net.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=net.named_parameters(),
        backward_passes_per_step=passes,
        compression=compression,
        op=op,
    )
    if behind:
        hvd.broadcast_parameters(net.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    followed(net, optimizer, schedule, passes)


def clipped():
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    hvd.broadcast_parameters(net.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=net.named_parameters(), gradient_predivide_factor=2.0
    )
    for step in range(4):
        x, y = batch(step)
        loss = functional.mse_loss(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        with optimizer.skip_synchronize():
            optimizer.step()
        made.append(hvd.allreduce(loss.detach(), average=False).item())
    for p in net.parameters():
        made.extend(p.detach().reshape(-1).tolist())


def gathered():
    t = torch.linspace(0.1, 2.3, 6).view(2, 3) * (hvd.rank() + 1)
    made.extend(hvd.allreduce(t).reshape(-1).tolist())
    made.extend(hvd.allreduce(t, op=hvd.Max, name="most").reshape(-1).tolist())
    made.extend(hvd.allreduce(t, compression=hvd.Compression.fp16).reshape(-1).tolist())
    scaled = hvd.allreduce(t, op=hvd.Sum, prescale_factor=0.3, postscale_factor=0.7)
    made.extend(scaled.reshape(-1).tolist())
    made.extend(hvd.allgather(t).reshape(-1).tolist())
    made.extend(hvd.broadcast(t, 0).reshape(-1).tolist())
    made.extend(hvd.synchronize(hvd.allreduce_async(t)).reshape(-1).tolist())
    made.append(hvd.broadcast_object({"rank": hvd.rank()}, root_rank=0)["rank"])
    made.extend(hvd.allgather_object(hvd.rank()))
    made.extend([hvd.size(), hvd.local_size() // hvd.size()])


for first, second in ((False, True), (True, False), (True, True)):
    for word in ("sgd", "momentum", "adam", "rmsprop"):
        in_order(word, first, second)
in_order("adam", True, False, passes=3)
in_order("momentum", True, False, op=hvd.Sum)
in_order("momentum", True, False, compression=hvd.Compression.fp16)
clipped()
gathered()
