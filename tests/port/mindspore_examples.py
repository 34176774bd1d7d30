"""Calls of torch, each compared with what the tables make of it; the first word is the test."""

# tensors: a, b (2, 3, 4); p positive (2, 3, 4); m (4, 4); i int64 (2, 3) in [0, 3); v (5,);
# x images (2, 3, 8, 8)
FUNCTIONS = """
torch.cat([a, b], dim=1)
torch.concat((a, b), -1)
torch.stack([a, b], dim=1)
torch.stack((a, b))
torch.zeros(2, 3)
torch.zeros((2, 3), dtype=torch.int64)
torch.zeros(3)
torch.ones(2, 3, device="cpu")
torch.full((2, 3), 1.5)
torch.full((2,), 3)
torch.zeros_like(a)
torch.empty_like(a).fill_(2)
torch.ones_like(a)
torch.full_like(a, 2.0)
torch.arange(5)
torch.arange(0, 5, 2, device="cpu")
torch.linspace(0, 1, 5)
torch.eye(3)
torch.tensor([1.0, 2.0])
torch.tensor(3)
torch.tensor([1, 2], dtype=torch.float32)
torch.as_tensor([1.0, 2.0])
torch.from_numpy(n)
torch.FloatTensor([1.0, 2.0])
torch.LongTensor([1, 2])
torch.where(a > 0, a, b)
torch.matmul(m, m)
torch.mm(m, m)
torch.bmm(a, b.transpose(1, 2))
torch.mean(a)
torch.mean(a, dim=1, keepdim=True)
torch.sum(a, dim=1, keepdim=True)
torch.sum(a)
torch.max(a)
torch.max(a, dim=1)
torch.max(a, 1)[1]
torch.min(a, dim=1)
torch.amax(a, dim=1)
torch.amin(a, dim=1)
torch.exp(a)
torch.expm1(a)
torch.log(p)
torch.log1p(p)
torch.sqrt(p)
torch.rsqrt(p)
torch.abs(a)
torch.pow(a, 2)
torch.square(a)
torch.sigmoid(a)
torch.tanh(a)
torch.relu(a)
torch.sin(a)
torch.cos(a)
torch.erf(a)
torch.clamp(a, min=0)
torch.clip(a, -1, 1)
torch.floor(a)
torch.ceil(a)
torch.round(a)
torch.sign(a)
torch.neg(a)
torch.reciprocal(p)
torch.minimum(a, b)
torch.maximum(a, b)
torch.add(a, b, alpha=2)
torch.sub(a, b)
torch.mul(a, b)
torch.div(a, p)
torch.eq(a, b)
torch.any(a > 0)
torch.all(a > 0)
torch.isnan(a)
torch.isinf(a)
torch.isfinite(a)
torch.logical_and(a > 0, b > 0)
torch.logical_not(a > 0)
torch.logical_or(a > 0, b > 0)
torch.flatten(a, 1)
torch.reshape(a, (2, 12))
torch.transpose(a, 1, 2)
torch.permute(a, (0, 2, 1))
torch.squeeze(a[:, :1], 1)
torch.squeeze(a[:, :1])
torch.unsqueeze(a, 1)
torch.split(a, 2, dim=2)
torch.chunk(a, 2, dim=2)
torch.unbind(a, 0)
torch.gather(m, 1, i[:, :2])
torch.index_select(a, 1, i[0])
torch.narrow(a, 2, 0, 2)
torch.flip(a, dims=(1,))
torch.roll(a, 1, dims=1)
torch.roll(a, (1, -2), dims=(1, 2))
torch.roll(a, 3)
torch.tile(a, (1, 2, 1))
torch.scatter(m, 1, i[:, :2], 1.0)
torch.masked_fill(a, a > 0, 0.0)
torch.masked_select(a, a > 0)
torch.nonzero(a > 0)
torch.prod(a, dim=1)
torch.cumprod(a, dim=1)
torch.cumsum(a, dim=1)
torch.cumsum(a, 1)
torch.lerp(a, b, 0.5)
torch.allclose(a, a)
torch.equal(a, a)
torch.equal(a, b)
torch.broadcast_to(v, (2, 5))
torch.remainder(a, 2)
torch.nan_to_num(a)
torch.cross(a[..., :3], b[..., :3], dim=-1)
torch.cdist(a, b)
torch.is_tensor(a)
torch.numel(a)
torch.tril(m)
torch.triu(m, diagonal=1)
torch.tril(torch.ones(3, 3)).view(1, 1, 3, 3)
torch.outer(v, v)
torch.dot(v, v)
torch.addmm(m, m, m)
torch.baddbmm(a[:, :, :3], a, b.transpose(1, 2))
torch.trace(m)
torch.inverse(m)
torch.hypot(a, b)
torch.atan2(a, b)
torch.diag(v)
torch.diag(m)
torch.histc(v, 5)
torch.meshgrid(v, v, indexing="ij")
torch.softmax(a, dim=-1)
torch.softmax(a, 1)
torch.log_softmax(a, dim=-1)
torch.log_softmax(a, 1)
torch.searchsorted(torch.sort(v)[0], v)
torch.logsumexp(a, dim=1)
torch.argmax(a, dim=1)
torch.argmax(a)
torch.argmin(a, dim=1)
torch.topk(a, 2, dim=-1)
torch.sort(a, dim=-1)
torch.sort(a, dim=1, descending=True)
torch.argsort(a, dim=-1)
torch.norm(a)
torch.norm(a, dim=1)
torch.norm(a, p=2, dim=1, keepdim=True)
torch.linalg.norm(a)
torch.linalg.vector_norm(a, dim=1)
torch.var(a, dim=1)
torch.std(a, dim=1)
torch.std(a)
torch.var(a, dim=-1, unbiased=False, keepdim=True)
torch.count_nonzero(a > 0)
torch.repeat_interleave(a, 2, dim=0)
torch.repeat_interleave(a, 2)
torch.einsum("bij,bkj->bik", a, b)
torch.einsum("bhwc,hkc->bhwk", x, x[0, :, :, :])
torch.ne(a, b)
torch.lt(a, b)
torch.gt(a, b)
torch.le(a, b)
torch.ge(a, b)
torch.log2(p)
torch.log10(p)
torch.sinh(a)
torch.cosh(a)
torch.tan(a)
torch.asin(torch.tanh(a))
torch.acos(torch.tanh(a))
torch.atan(a)
torch.fmod(a, 2)
torch.logical_xor(a > 0, b > 0)
torch.hstack((a, b))
torch.vstack((a, b))
torch.dstack((a, b))
torch.column_stack((v, v))
torch.movedim(a, 0, 1)
torch.swapaxes(a, 1, 2)
torch.true_divide(a, p)
torch.is_floating_point(a)
torch.numel(a)
torch.Tensor([1, 2])
torch.Tensor([[0.5, 2.0], [1.0, 3.0]])
torch.randn(2, 3).shape
torch.rand(2, 3, device="cpu").shape
torch.randn_like(a).shape
torch.rand_like(a).shape
torch.randint(0, 5, (2, 3)).shape
torch.randint(5, (2, 3)).dtype
torch.randperm(5).shape
torch.normal(0.0, 1.0, size=(2, 3)).shape
torch.bernoulli(torch.zeros(3))
torch.bernoulli(torch.ones(3))
torch.multinomial(torch.softmax(m, -1), num_samples=1).shape
torch.empty(2, 3).shape
F.relu(a)
F.relu(a.clone(), inplace=True)
F.relu6(a)
F.gelu(a)
F.gelu(a, approximate="tanh")
F.silu(a)
F.mish(a)
F.selu(a)
F.hardswish(a)
F.leaky_relu(a, 0.2)
F.leaky_relu(a)
F.elu(a)
F.hardtanh(a)
F.softplus(a)
F.sigmoid(a)
F.tanh(a)
F.logsigmoid(a)
F.glu(a, -1)
F.softmax(a, dim=-1)
F.softmax(a, -1)
F.log_softmax(a, dim=-1)
F.log_softmax(a, 1)
F.softmin(a, -1)
F.gumbel_softmax(a, tau=0.5, hard=True).sum()
F.cross_entropy(m[:2], i[:, 0])
F.cross_entropy(m[:2], i[:, 0], label_smoothing=0.1)
F.cross_entropy(m[:2], i[:, 0], reduction="none")
F.cross_entropy(m[:2], i[:, 0], ignore_index=0)
F.cross_entropy(m, torch.softmax(m, -1))
F.cross_entropy(a.view(-1, a.size(-1)), i.view(-1))
F.nll_loss(F.log_softmax(m[:2], -1), i[:, 0])
F.nll_loss(F.log_softmax(m[:2], dim=-1), i[:, 0], reduction="sum")
F.mse_loss(a, b)
F.mse_loss(a, b, reduction="sum")
F.l1_loss(a, b)
F.smooth_l1_loss(a, b)
F.smooth_l1_loss(a, b, reduction="sum", beta=0.5)
F.huber_loss(a, b)
F.binary_cross_entropy(torch.sigmoid(a), torch.sigmoid(b))
F.binary_cross_entropy_with_logits(a, torch.sigmoid(b))
F.binary_cross_entropy_with_logits(a, torch.sigmoid(b), reduction="none")
F.binary_cross_entropy_with_logits(a, torch.sigmoid(b), pos_weight=p[0, 0])
F.kl_div(F.log_softmax(a, -1), F.softmax(b, -1), reduction="batchmean")
F.cosine_embedding_loss(m, m * 2, torch.ones(4))
F.cosine_similarity(a, b, dim=-1)
F.batch_norm(a, None, None, training=True)
F.batch_norm(a, p[0, :, 0], p[0, :, 0] + 1, p[0, :, 0], p[0, :, 0], eps=0.01)
torch.diag_embed(a)
torch.index_add(m, 1, i[0], m[:, :3], alpha=0.5)
F.dropout(a, 0.5, False)
F.dropout(a, p=0.0, training=True)
F.linear(a, m)
F.linear(a, m, m[0])
F.layer_norm(a, (4,))
F.layer_norm(a, (4,), m[0], m[1], 1e-3)
F.group_norm(x, 3)
F.rms_norm(a, (4,))
F.rms_norm(a, (4,), m[0], 1e-3)
F.normalize(a, dim=-1)
F.normalize(a)
F.pad(a, (1, 2))
F.pad(a, (1, 1), value=2.0)
F.pad(x, (1, 1, 2, 0))
F.one_hot(i, 5)
F.one_hot(i, num_classes=5)
F.embedding(i, m)
F.max_pool2d(x, 2)
F.max_pool2d(x, 3, stride=2, padding=1)
F.avg_pool2d(x, 2)
F.avg_pool2d(x, 3, 1)
F.adaptive_avg_pool2d(x, 1)
F.adaptive_avg_pool2d(x, (2, 2))
F.adaptive_max_pool2d(x, 1)
F.interpolate(x, scale_factor=2)
F.interpolate(x, scale_factor=2, mode="nearest")
F.interpolate(x, size=(16, 16))
F.interpolate(x, size=(4, 4), mode="bilinear", align_corners=False)
F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True)
F.conv2d(x, x[:, :, :3, :3], padding=1)
F.conv2d(x, x[:, :, :3, :3], padding=(1, 0), stride=2)
F.unfold(x, 3)
F.pixel_shuffle(x[:, :1].expand(2, 4, 8, 8), 2)
F.scaled_dot_product_attention(a, b, b)
F.scaled_dot_product_attention(a, b, b, is_causal=True)
F.scaled_dot_product_attention(a, b, b, attn_mask=torch.ones(3, 3).tril() > 0)
torch.nn.utils.rnn.pack_padded_sequence(a, [3, 2], batch_first=True)[:2]
torch.nn.utils.rnn.PackedSequence(a, torch.tensor([2, 1])).batch_sizes
torch.nn.utils.rnn.pad_packed_sequence(torch.nn.utils.rnn.pack_sequence([a, a[:1]]), True)
torch.nn.utils.rnn.unpack_sequence(torch.nn.utils.rnn.pack_sequence([b, b[1:]]))
""".strip().splitlines()

METHODS = """
a.size()
a.size(1)
a.size(-1)
a.view(2, -1).shape
a.view(-1)
a.reshape(6, 4)
a.transpose(1, 2)
a.transpose(-2, -1)
a.permute(2, 0, 1)
a.contiguous().view(6, 4)
a.flatten(1)
a.unsqueeze(1)
a[:, :1].squeeze(1)
a.mean(dim=(1, 2), keepdim=True)
a.mean(-1, keepdim=True)
a.mean()
a.sum(1)
a.sum(dim=-1)
a.max(1)
a.max(dim=1)[1]
a.max(1, keepdim=True)[1]
a.max()
a.min(dim=1)
a.argmax(dim=1)
a.argmax(1, keepdim=True)
a.argmin(dim=1)
a.masked_fill(a > 0, float("-inf"))
a.split(2, dim=2)
a.chunk(2, dim=-1)
a.unbind(0)
a.repeat(2, 1, 1)
a.repeat((1, 2, 1))
a[:, :1].expand(2, 3, 4)
a[:, :1].expand(-1, 3, -1)
a[:, :1].expand_as(a)
a.topk(2, dim=1)[0]
a.sort(dim=1)
a.sort(-1, True)[0]
a.cumsum(dim=-1)
m.t()
m.T
a.eq(b).sum().item()
a.sum().item()
m.tolist()
a.float()
a.long()
a.half()
a.double()
a.bool()
a.int()
a.to(torch.float16)
a.to("cpu")
a.cpu()
a.cpu().numpy()
a.numel()
a.dim()
a.clone()
a.detach()
a.detach().cpu().numpy()
a.type(torch.float16)
a.type_as(b)
a.gather(1, i[:, None, :1].expand(2, 1, 4))
a.clamp(min=0)
a.clamp(0, 1)
a.pow(2)
a.abs()
a.exp()
p.log()
p.sqrt()
p.rsqrt()
a.sin()
a.cos()
a.sigmoid()
a.tanh()
a.relu()
a.softmax(dim=-1)
a.softmax(-1)
a.log_softmax(-1)
a.norm()
a.norm(dim=1, keepdim=True)
a.norm(2, dim=-1)
a.std()
a.std(dim=1)
a.var(dim=1, unbiased=False)
(a > 1).any()
(a > -9).all()
a.matmul(b.transpose(1, 2))
a @ b.transpose(1, 2)
a.bmm(b.transpose(1, 2))
m.tril()
m.triu(1)
a.roll(1, dims=1)
a.new_zeros(2, 3)
a.new_ones((2, 3))
a.prod(dim=1)
a.eq(b)
a.ne(b)
a.lt(b)
a.gt(b)
a.isnan().any()
a.index_select(1, i[0])
a.repeat_interleave(2, dim=0)
a.nonzero().shape
a.reciprocal()
a.round()
a.floor()
a.sign()
a.add(b)
a.mul(b)
a.sub(b)
a.div(p)
a.neg()
a.square()
a[None].shape
a[..., 0]
a[:, -1, :]
a[:, [-1], :]
a.logsumexp(dim=1)
m.diag()
a.flip(1)
a.view_as(a)
a.ndim
a.shape
len(a)
""".strip().splitlines()

# torch's module; the shape of its input, or "int:" and a shape for class numbers
LAYERS = [
    ("nn.Linear(4, 5)", "2,3,4"),
    ("nn.Linear(4, 5, bias=False)", "2,4"),
    ("nn.Linear(4, out_features=5)", "2,4"),
    ("nn.Conv1d(3, 4, 3, padding=1)", "2,3,8"),
    ("nn.Conv2d(3, 4, 3)", "2,3,8,8"),
    ("nn.Conv2d(3, 4, 3, padding=1)", "2,3,8,8"),
    ("nn.Conv2d(3, 4, kernel_size=3, stride=2, padding=1, bias=False)", "2,3,8,8"),
    ("nn.Conv2d(3, 4, 3, 2, (1, 0))", "2,3,8,8"),
    ("nn.Conv2d(4, 4, 3, padding=1, groups=2)", "2,4,8,8"),
    ("nn.Conv2d(3, 4, 3, padding=2, dilation=2)", "2,3,8,8"),
    ("nn.Conv2d(3, 4, 3, padding='valid')", "2,3,8,8"),
    ("nn.Conv3d(2, 3, 3, padding=1)", "2,2,4,4,4"),
    ("nn.ConvTranspose2d(3, 4, 2, stride=2)", "2,3,4,4"),
    ("nn.ConvTranspose2d(3, 4, 4, 2, 1, bias=False)", "2,3,4,4"),
    ("nn.BatchNorm1d(4)", "6,4"),
    ("nn.BatchNorm2d(3)", "4,3,5,5"),
    ("nn.BatchNorm2d(3, momentum=0.3, eps=1e-3)", "4,3,5,5"),
    ("nn.BatchNorm2d(3, 1e-3, 0.01)", "4,3,5,5"),
    ("nn.BatchNorm3d(3)", "2,3,2,3,3"),
    ("nn.LayerNorm(4)", "2,3,4"),
    ("nn.LayerNorm((4,), eps=1e-3)", "2,3,4"),
    ("nn.GroupNorm(2, 4)", "2,4,5,5"),
    ("nn.GroupNorm(1, 4, eps=1e-3)", "2,4,5,5"),
    ("nn.Dropout(0.0)", "2,4"),
    ("nn.Dropout2d(p=0.0)", "2,4,3,3"),
    ("nn.MaxPool1d(2)", "2,3,8"),
    ("nn.MaxPool2d(2)", "2,3,8,8"),
    ("nn.MaxPool2d(kernel_size=3, stride=2, padding=1)", "2,3,8,8"),
    ("nn.MaxPool2d(3, 2)", "2,3,8,8"),
    ("nn.AvgPool1d(2)", "2,3,8"),
    ("nn.AvgPool2d(2)", "2,3,8,8"),
    ("nn.AvgPool2d(3, stride=1, padding=1)", "2,3,8,8"),
    ("nn.AdaptiveAvgPool1d(1)", "2,3,8"),
    ("nn.AdaptiveAvgPool2d(1)", "2,3,8,8"),
    ("nn.AdaptiveAvgPool2d((2, 2))", "2,3,8,8"),
    ("nn.ZeroPad2d(1)", "2,3,4,4"),
    ("nn.ReflectionPad2d(1)", "2,3,4,4"),
    ("nn.ConstantPad2d(1, 2.0)", "2,3,4,4"),
    ("nn.Upsample(scale_factor=2)", "2,3,4,4"),
    ("nn.Upsample(scale_factor=2, mode='bilinear', align_corners=True)", "2,3,4,4"),
    ("nn.PixelShuffle(2)", "2,4,3,3"),
    ("nn.PixelUnshuffle(2)", "2,1,4,4"),
    ("nn.Flatten()", "2,3,4"),
    ("nn.Unflatten(1, (2, 2))", "2,4"),
    ("nn.Identity()", "2,3"),
    ("nn.ReLU(inplace=True)", "2,3"),
    ("nn.ReLU6()", "2,3"),
    ("nn.SiLU()", "2,3"),
    ("nn.Mish()", "2,3"),
    ("nn.SELU()", "2,3"),
    ("nn.ELU()", "2,3"),
    ("nn.CELU()", "2,3"),
    ("nn.Hardswish()", "2,3"),
    ("nn.Hardsigmoid()", "2,3"),
    ("nn.Softshrink()", "2,3"),
    ("nn.Hardshrink()", "2,3"),
    ("nn.Hardtanh()", "2,3"),
    ("nn.LeakyReLU(0.2, inplace=True)", "2,3"),
    ("nn.LeakyReLU()", "2,3"),
    ("nn.PReLU()", "2,3"),
    ("nn.Threshold(0.1, 2.0)", "2,3"),
    ("nn.GELU()", "2,3"),
    ("nn.GELU(approximate='tanh')", "2,3"),
    ("nn.GLU()", "2,4"),
    ("nn.Sigmoid()", "2,3"),
    ("nn.Tanh()", "2,3"),
    ("nn.Softsign()", "2,3"),
    ("nn.LogSigmoid()", "2,3"),
    ("nn.Tanhshrink()", "2,3"),
    ("nn.Softmax(dim=1)", "2,3"),
    ("nn.LogSoftmax(-1)", "2,3"),
    ("nn.Softmin(dim=1)", "2,3"),
    ("nn.Embedding(7, 3)", "int:2,5"),
    ("nn.Embedding(7, 3, padding_idx=0)", "int:2,5"),
    ("nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))", "2,4"),
    ("nn.MultiheadAttention(8, 2, batch_first=True)", "3*2,5,8"),
    ("nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)", "2,5,8"),
    (
        "nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), 2)",
        "2,5,8",
    ),
    ("nn.LSTM(4, 3, batch_first=True)", "2,5,4"),
    ("nn.LSTM(4, 3, 2)", "5,2,4"),
    ("nn.GRU(4, 3, batch_first=True)", "2,5,4"),
    ("nn.RNN(4, 3, batch_first=True)", "2,5,4"),
]

# loss; what stands in for its inputs, of the tensors above
LOSSES = [
    ("nn.CrossEntropyLoss()", "m[:2], i[:, 0]"),
    ("nn.CrossEntropyLoss(label_smoothing=0.1, reduction='sum')", "m[:2], i[:, 0]"),
    ("nn.CrossEntropyLoss(ignore_index=0)", "m[:2], i[:, 0]"),
    ("nn.NLLLoss()", "torch.log_softmax(m[:2], -1), i[:, 0]"),
    ("nn.MSELoss()", "a, b"),
    ("nn.MSELoss(reduction='sum')", "a, b"),
    ("nn.L1Loss()", "a, b"),
    ("nn.SmoothL1Loss()", "a, b"),
    ("nn.SmoothL1Loss(beta=0.5)", "a, b"),
    ("nn.HuberLoss()", "a, b"),
    ("nn.BCELoss()", "torch.sigmoid(a), torch.sigmoid(b)"),
    ("nn.BCEWithLogitsLoss()", "a, torch.sigmoid(b)"),
    ("nn.BCEWithLogitsLoss(pos_weight=p[0, 0])", "a, torch.sigmoid(b)"),
    ("nn.KLDivLoss(reduction='batchmean')", "torch.log_softmax(a, -1), torch.softmax(b, -1)"),
    ("nn.CosineEmbeddingLoss()", "m, m * 2, torch.ones(4)"),
    ("nn.MarginRankingLoss(0.1)", "v, v * 2, torch.ones(5)"),
]

OPTIMIZERS = [
    "torch.optim.SGD(params)",
    "torch.optim.SGD(params, 0.1)",
    "torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=1e-2)",
    "torch.optim.SGD(params, lr=0.1, momentum=0.9, nesterov=True)",
    "torch.optim.Adam(params)",
    "torch.optim.Adam(params, lr=1e-2, betas=(0.5, 0.999), weight_decay=1e-2, fused=False)",
    "torch.optim.Adam(params, 1e-2)",
    "torch.optim.AdamW(params, lr=1e-2)",
    "torch.optim.AdamW(params, lr=1e-2, betas=(0.9, 0.95), eps=1e-6, weight_decay=0.1)",
    "torch.optim.AdamW([{'params': params, 'weight_decay': 0.1}], lr=1e-2)",
    "torch.optim.RMSprop(params, lr=1e-2)",
    "torch.optim.RMSprop(params, lr=1e-2, momentum=0.9, weight_decay=1e-3, foreach=True)",
    "torch.optim.Adadelta(params, lr=1.0)",
    "torch.optim.Adagrad(params, lr=1e-2)",
    "torch.optim.Adamax(params, lr=1e-2)",
    "torch.optim.NAdam(params, lr=1e-2)",
    "torch.optim.RAdam(params, lr=1e-2)",
]

SCHEDULERS = [
    "StepLR(optimizer, step_size=2, gamma=0.5)",
    "MultiStepLR(optimizer, milestones=[2, 4], gamma=0.1)",
    "CosineAnnealingLR(optimizer, T_max=6)",
    "CosineAnnealingLR(optimizer, 6, eta_min=1e-3)",
    "CosineAnnealingWarmRestarts(optimizer, T_0=3)",
    "LambdaLR(optimizer, lambda epoch: 0.9**epoch)",
    "LambdaLR(optimizer, lr_lambda=[lambda epoch: 1 / (epoch + 1)])",
    "MultiplicativeLR(optimizer, lambda epoch: 0.9)",
    "LinearLR(optimizer, start_factor=0.1, total_iters=4)",
    "ConstantLR(optimizer, factor=0.5, total_iters=3)",
    "ExponentialLR(optimizer, gamma=0.9)",
    "PolynomialLR(optimizer, total_iters=5, power=2.0)",
    "SequentialLR(optimizer, [LinearLR(optimizer, total_iters=2), ExponentialLR(optimizer, 0.9)], "
    "milestones=[2])",
    "ReduceLROnPlateau(optimizer, patience=1, factor=0.5)",
    "ReduceLROnPlateau(optimizer, 'max', 0.5, 3, 1e-3, 'abs', cooldown=2, min_lr=1e-3)",
    "CosineAnnealingLR(optimizer, T_max=30)",
    "CosineAnnealingWarmRestarts(optimizer, T_0=5, T_mult=2, eta_min=1e-4)",
    "SequentialLR(optimizer, [LinearLR(optimizer, total_iters=9), ConstantLR(optimizer), "
    "CosineAnnealingLR(optimizer, 20)], milestones=[9, 30])",
    "SequentialLR(optimizer, [StepLR(optimizer, 5), PolynomialLR(optimizer, 30)], milestones=[40])",
    "ChainedScheduler([LinearLR(optimizer, total_iters=9), ExponentialLR(optimizer, 0.9)])",
    "OneCycleLR(optimizer, max_lr=0.3, total_steps=100)",
    "OneCycleLR(optimizer, [0.3], epochs=10, steps_per_epoch=10, pct_start=0.25, "
    "anneal_strategy='linear', div_factor=10.0, final_div_factor=50.0)",
    "OneCycleLR(optimizer, 0.3, 100, three_phase=True, base_momentum=0.8, max_momentum=0.9)",
    "OneCycleLR(optimizer, 0.3, 99, cycle_momentum=False)",
    "CyclicLR(optimizer, 0.01, 0.1, step_size_up=7, step_size_down=11)",
    "CyclicLR(optimizer, 0.01, 0.1, step_size_up=10, mode='triangular2')",
    "CyclicLR(optimizer, 0.01, 0.1, 10, mode='exp_range', gamma=0.98, cycle_momentum=False)",
    "CyclicLR(optimizer, 0.01, 0.1, 10, scale_fn=lambda x: 0.5 ** x, scale_mode='iterations')",
]
