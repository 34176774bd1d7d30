import argparse

import torch

try:
    from apex import amp
except ImportError:
    amp = None

parser = argparse.ArgumentParser()
parser.add_argument("--opt-level", default="O2")


def train(model, criterion, optimizer, batches, args):
    if amp is not None:
        model, optimizer = amp.initialize(
            model, optimizer, opt_level=args.opt_level, keep_batchnorm_fp32=None, num_losses=2
        )
    for step, (x, y) in enumerate(batches):
        # forward
        out = model(x)
        loss = criterion(out, y) / 2
        with amp.scale_loss(loss, optimizer, 1, delay_unscale=step % 2 == 0) as scaled:
            scaled.backward()
        if step % 2:
            torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    return {"amp": amp.state_dict()}
