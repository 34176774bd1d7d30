import argparse

import torch
import torch_npu

parser = argparse.ArgumentParser()
parser.add_argument("--device", default="npu", choices=["npu", "cpu"], help="cuda or cpu")
parser.add_argument("--gpu", default="npu:0")
parser.add_argument("--cuda", action="store_true")
parser.add_argument("--dist-url", default="env://")
parser.add_argument("--backend", default="hccl")
args = parser.parse_args()
if args.cuda and getattr(args, "cuda") and args.device.startswith("npu"):
    torch.distributed.init_process_group(args.backend, init_method=args.dist_url)
