import torch
from apex import amp

net = torch.nn.Linear(2, 2).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
net, opt = amp.initialize(net, opt, opt_level="O1", num_losses=2)
for x in torch.ones(3, 4, 2):
    with amp.scale_loss(net(x).sum(), opt, loss_id=0) as loss:
        loss.backward()
    with amp.scale_loss(net(-x).sum(), opt, loss_id=1) as loss:
        loss.backward()
    opt.step()
