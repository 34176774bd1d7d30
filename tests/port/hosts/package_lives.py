"""Boxes, schedules and optimizers of packages; what they gave in ``made``."""

import torch
import torchvision
from diffusers.optimization import get_scheduler as diffusers_scheduler
from lion_pytorch import Lion
from torchvision.ops import boxes, generalized_box_iou, sigmoid_focal_loss
from torchvision.ops.boxes import batched_nms, box_area, nms
from transformers import (
    get_inverse_sqrt_schedule,
    get_polynomial_decay_schedule_with_warmup,
    get_scheduler,
)

made = []
corners = torch.sin(torch.arange(1.0, 49.0) * 1.7).view(24, 2) * 5
sides = torch.cos(torch.arange(1.0, 49.0)).view(24, 2).abs() * 6 + 0.3
BOXES = torch.cat([corners, corners + sides], 1)
BOXES[7, 2:] = BOXES[7, :2] - 1
SCORES = torch.tensor([0.9, 0.8, 0.8, 0.3] * 6) - torch.arange(24) // 8 * 0.1
KINDS = torch.arange(24) % 3


def kept(*values):
    for value in values:
        made.extend(value.detach().double().reshape(-1).tolist())


kept(box_area(BOXES), box_area((BOXES * 3).int()), boxes.box_iou(BOXES, BOXES[:5]))
kept(generalized_box_iou(BOXES, BOXES[3:9]))
for limit in (0.1, 0.3, 0.6):
    kept(nms(BOXES, SCORES, limit), batched_nms(BOXES, SCORES, KINDS, limit))
    kept(torchvision.ops.nms(boxes=BOXES, scores=SCORES, iou_threshold=limit))
many = torch.cat([BOXES + 0.1 * n for n in range(48)])
kept(batched_nms(many, SCORES.repeat(48) + many[:, 0] / 50, KINDS.repeat(48), 0.4))
kept(boxes.clip_boxes_to_image(BOXES, (4, 3)), boxes.remove_small_boxes(BOXES, 2.5))
for one in ("xyxy", "xywh", "cxcywh"):
    for other in ("xyxy", "xywh", "cxcywh"):
        kept(torchvision.ops.box_convert(BOXES, one, other))
hits = (BOXES > 0).float()
kept(sigmoid_focal_loss(BOXES, hits), sigmoid_focal_loss(BOXES, hits, alpha=-1, gamma=1.5))
kept(sigmoid_focal_loss(BOXES, hits, 0.4, reduction="mean").reshape(1))
empty = BOXES[:0]
made.append(len(batched_nms(empty, SCORES[:0], KINDS[:0], 0.5)) + len(nms(empty, SCORES[:0], 0.5)))
made.append(float(torchvision.get_image_backend() == "PIL"))


def rates(make):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.4)
    schedule = make(optimizer)
    for _ in range(12):
        optimizer.step()
        schedule.step()
        made.append(schedule.get_last_lr()[0])


for name in ("linear", "cosine", "cosine_with_restarts", "polynomial", "constant"):
    rates(lambda o, name=name: get_scheduler(name, o, 3, 10))
    rates(
        lambda o, name=name: diffusers_scheduler(name, o, num_warmup_steps=2, num_training_steps=9)
    )
rates(lambda o: get_scheduler("constant_with_warmup", optimizer=o, num_warmup_steps=4))
rates(lambda o: get_scheduler("inverse_sqrt", o, 4, scheduler_specific_kwargs={"timescale": 6}))
rates(lambda o: get_scheduler("polynomial", o, 2, 8, {"power": 2.0, "lr_end": 0.1}))
rates(lambda o: diffusers_scheduler("polynomial", o, None, 2, 8, power=3.0))
rates(lambda o: diffusers_scheduler("cosine_with_restarts", o, None, 0, 10, num_cycles=3))
rates(lambda o: get_inverse_sqrt_schedule(o, 0))
rates(lambda o: get_polynomial_decay_schedule_with_warmup(o, 1, 7, power=0.5))


def trained(weight, optimizer):
    for step in range(4):
        optimizer.zero_grad()
        loss = ((weight - 0.3 * step) ** 3).sum()
        loss.backward()
        optimizer.step()
    kept(weight)


def weights():
    return torch.nn.Parameter(torch.linspace(-1.0, 2.0, 5))


one, two, three = weights(), weights(), weights()
trained(one, Lion([one]))
trained(two, Lion([two], lr=0.05, betas=(0.8, 0.9), weight_decay=0.1))
trained(three, Lion([three], 0.05, weight_decay=0.1, decoupled_weight_decay=True))


def overlapping():
    held = torch.nn.Parameter(BOXES[8:12] + 0.25)
    loss = (1 - torch.diag(generalized_box_iou(held, BOXES[8:12]))).sum()
    loss = loss + box_area(held).mean() / 50 + sigmoid_focal_loss(held, hits[8:12]).mean()
    loss.backward()
    kept(loss.reshape(1), held.grad)


overlapping()
