import torch

model = torch.nn.Linear(2, 2).cuda()
scaler = torch.cuda.amp.GradScaler()
first = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
second = torch.optim.Adam(
    model.parameters(),
    fused=torch.cuda.is_available(),
    lr=1e-3,
)
options = {"lr": 1e-3, "fused": True}
third = torch.optim.SGD(model.parameters(), **options)
