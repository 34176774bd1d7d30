import torch

graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = torch.ones(2, device="cuda")
graph.replay()
