import argparse

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"], help="cuda or cpu")
parser.add_argument("--gpu", default="cuda:0")
parser.add_argument("--cuda", action="store_true")
parser.add_argument("--dist-url", default="env://")
parser.add_argument("--backend", default="nccl")
args = parser.parse_args()
if args.cuda and getattr(args, "cuda") and args.device.startswith("cuda"):
    torch.distributed.init_process_group(args.backend, init_method=args.dist_url)
