import argparse

import mindspore as ms
import mpcore_port_runtime as port

try:
    pass
except ImportError:
    amp = None

parser = argparse.ArgumentParser()
parser.add_argument("--opt-level", default="O2")


def train(model, criterion, optimizer, batches, args):
    if port.apex is not None:
        model, optimizer = port.apex.initialize(
            model, optimizer, opt_level=args.opt_level, keep_batchnorm_fp32=None, num_losses=2
        )
    for step, (x, y) in enumerate(batches):
        # forward
        def forward():
            out = model(x)
            loss = criterion(out, y) / 2
            return loss
        loss = port.loss(forward, model, criterion, scaler=port.apex.scaler(1))
        with port.apex.scale_loss(loss, optimizer, 1, delay_unscale=step % 2 == 0) as scaled:
            scaled.backward()
        if step % 2:
            port.clip_grad_norm_(port.apex.master_params(optimizer), 1.0)
            port.step(optimizer)
            port.zero_grad(optimizer)
    return {"amp": port.apex.state_dict()}
