from torch.cuda import nvtx

marks = [nvtx.range_start("a"), nvtx.range_start("b")]
