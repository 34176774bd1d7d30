"""Streams of a prefetcher: a port runs all in the order of the program."""

from __future__ import annotations

from .ports import compare, ported

FETCHES = """import torch

made = []


class Prefetcher:
    def __init__(self, loader):
        self.loader = iter(loader)
        self.stream = torch.cuda.Stream()
        self.preload()

    def preload(self):
        try:
            self.images, self.labels = next(self.loader)
        except StopIteration:
            self.images = None
            return
        with torch.cuda.stream(self.stream):
            self.images = self.images.cuda(non_blocking=True).float().mul(2)
            self.labels = self.labels.cuda(non_blocking=True)

    def next(self):
        torch.cuda.current_stream().wait_stream(self.stream)
        images, labels = self.images, self.labels
        if images is not None:
            images.record_stream(torch.cuda.current_stream())
            labels.record_stream(torch.cuda.current_stream())
        self.preload()
        return images, labels


fetched = Prefetcher([(torch.arange(3) + i, torch.tensor(i)) for i in range(3)])
images, labels = fetched.next()
while images is not None:
    made += [images, labels]
    images, labels = fetched.next()
"""
# What torch does on a machine without CUDA, by hand.
BY_HAND = (
    FETCHES.replace("torch.cuda.Stream()", "None")
    .replace("with torch.cuda.stream(self.stream):", "if True:")
    .replace("torch.cuda.current_stream().wait_stream(self.stream)", "pass")
    .replace("images.record_stream(torch.cuda.current_stream())", "pass")
    .replace("labels.record_stream(torch.cuda.current_stream())", "pass")
    .replace(".cuda(non_blocking=True)", "")
)


def test_a_prefetcher_gives_its_batches_in_order(tmp_path):
    found = ported(FETCHES)
    assert found.said.kind == "runs"
    assert "record_stream" not in found.text
    compare(BY_HAND, found.text, tmp_path)


def test_other_uses_of_streams_run(tmp_path):
    script = """import torch
made = []
side = torch.cuda.Stream(device="cuda", priority=-1)
with side, torch.cuda.stream(torch.cuda.default_stream()):
    x = torch.ones(2) * 3
done = side.record_event()
torch.cuda.current_stream(torch.device("cuda")).wait_event(done)
side.synchronize()
made.append(x if side.query() else None)
"""
    found = ported(script)
    compare("import torch\nmade = [torch.ones(2) * 3]\n", found.text, tmp_path)
