"""A teacher that learns by its student's losses of before and of behind the student's step."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.cuda import amp


def turn(teacher, student, batches, moves_teacher, moves_student, scaler_teacher, scaler_student):
    for x, y, more in batches:
        both = torch.cat([x, more])
        guess = teacher(both)
        known, unknown = guess[: len(x)], guess[len(x) :]
        taught = F.cross_entropy(known, y)
        hard = torch.softmax(unknown.detach(), -1).argmax(-1)
        seen = student(both)
        old = seen[: len(x)]
        of_before = F.cross_entropy(old.detach(), y)
        learnt = F.cross_entropy(seen[len(x) :], hard)
        scaler_student.scale(learnt).backward()
        scaler_student.step(moves_student)
        scaler_student.update()
        with torch.no_grad():
            again = student(x)
        of_now = F.cross_entropy(again.detach(), y)
        gain = of_before - of_now
        loss = taught + gain * F.cross_entropy(unknown, hard)
        scaler_teacher.scale(loss).backward()
        scaler_teacher.step(moves_teacher)
        scaler_teacher.update()
        teacher.zero_grad()
        student.zero_grad()
        print(learnt.item(), loss.item(), gain.item())


def main():
    torch.manual_seed(41)
    teacher = nn.Sequential(nn.Linear(5, 12), nn.Tanh(), nn.Linear(12, 3))
    student = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))
    moves_teacher = torch.optim.SGD(teacher.parameters(), lr=0.1, momentum=0.9)
    moves_student = torch.optim.SGD(student.parameters(), lr=0.2)
    scaler_teacher = amp.GradScaler(init_scale=2.0**8)
    scaler_student = amp.GradScaler(init_scale=2.0**8)
    batches = [(torch.randn(6, 5), torch.randint(0, 3, (6,)), torch.randn(8, 5)) for _ in range(5)]
    for _ in range(2):
        turn(
            teacher, student, batches, moves_teacher, moves_student, scaler_teacher, scaler_student
        )


main()
