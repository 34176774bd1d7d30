"""What is planted into public training scripts: small edits, and what should be found."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["HELD_OUT", "SUBJECTS", "Fault", "Subject"]

OPTIMIZER, UPDATE = ("optimizer constants",), ("update",)
DATA = ("data order", "label", "other setting")


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        name: in a word.
        edits: file, what stands there, what stands there instead.
        phases: where it may show first; ``("start",)`` is before the first step.
        kinds: right causes.
        place: part of the layer's path, if it is a layer.
        steps: at which it may show.
        says: words of which one has to be told.
        threads: of the second run.
    """

    name: str
    edits: tuple[tuple[str, str, str], ...]
    phases: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    place: str = ""
    steps: tuple[int, ...] = (0,)
    says: tuple[str, ...] = ()
    threads: int = 1


@dataclass(frozen=True)
class Subject:
    """One script: where it lies, how it is run small, where it is recorded, what is planted."""

    repo: str
    paths: tuple[str, ...]
    script: str
    edits: tuple[tuple[str, str, str], ...]
    faults: tuple[Fault, ...]
    args: tuple[str, ...] = ()
    home: str = "."
    data: str = ""
    examples: int = 0
    more: dict[str, str] = field(default_factory=dict)


RECORD = "_mp.record(model, _os.environ['RUN'], steps=5)"
NEVER = ("zero_grad", "earlier", "accumulat", "left over")

_GPT_LOSS = "targets.view(-1), ignore_index=-1)"
_ADDER = Subject(
    "karpathy+minGPT",
    ("mingpt", "projects/adder/adder.py"),
    "adder.py",
    (
        ("adder.py", "    # construct the trainer object", f"    {RECORD}"),
        ("adder.py", "% 500 == 0", "% 500 == 499"),
    ),
    (
        Fault("rate", (("adder.py", "= 5e-4", "= 1e-3"),), UPDATE, OPTIMIZER),
        Fault(
            "betas",
            (("../../mingpt/trainer.py", "(0.9, 0.95)", "(0.9, 0.999)"),),
            UPDATE,
            OPTIMIZER,
            steps=(0, 1),
        ),
        Fault(
            "decay",
            (("../../mingpt/trainer.py", "weight_decay = 0.1", "weight_decay = 0.0"),),
            UPDATE,
            OPTIMIZER,
        ),
        Fault(
            "dropout off",
            (("../../mingpt/model.py", "C.resid_pdrop = 0.1", "C.resid_pdrop = 0.0"),),
            ("forward",),
            ("random state", "other setting"),
            "resid_dropout",
        ),
        Fault(
            "zero_grad",
            (("../../mingpt/trainer.py", "model.zero_grad(set_to_none=True)", "pass"),),
            ("backward", "update"),
            ("other setting",),
            steps=(1,),
            says=NEVER,
        ),
        Fault(
            "norm eps",
            (
                (
                    "../../mingpt/model.py",
                    "self.ln_1 = nn.LayerNorm(config.n_embd)",
                    "self.ln_1 = nn.LayerNorm(config.n_embd, eps=1e-3)",
                ),
            ),
            ("forward",),
            ("eps",),
            "ln_1",
        ),
        Fault(
            "init",
            (("../../mingpt/model.py", "std=0.02)", "std=0.04)"),),
            ("start",),
            ("initialisation",),
        ),
        Fault("data", (("adder.py", "manual_seed(1337)", "manual_seed(1338)"),), ("input",), DATA),
        Fault(
            "label offset",
            (("adder.py", "y[:ndigit*2-1] = -1", "y = (y + 1) % 10; y[:ndigit*2-1] = -1"),),
            ("input", "loss"),
            ("label",),
        ),
        Fault(
            "loss sum",
            (("../../mingpt/model.py", _GPT_LOSS, _GPT_LOSS[:-1] + ", reduction='sum')"),),
            ("loss",),
            ("loss reduction",),
        ),
        Fault(
            "label smoothing",
            (("../../mingpt/model.py", _GPT_LOSS, _GPT_LOSS[:-1] + ", label_smoothing=0.1)"),),
            ("loss",),
            ("label",),
            says=("smooth",),
        ),
        Fault(
            "bfloat16",
            (
                (
                    "../../mingpt/model.py",
                    "(q @ k.transpose(-2, -1))",
                    "(q.bfloat16() @ k.bfloat16().transpose(-2, -1)).float()",
                ),
            ),
            ("forward",),
            ("missing cast", "dtype rule", "op list"),
            "attn",
        ),
        Fault(
            "frozen",
            (
                (
                    "adder.py",
                    "    trainer = Trainer(",
                    "    model.transformer.wpe.weight"
                    ".requires_grad_(False)\n    trainer = Trainer(",
                ),
            ),
            ("backward", "update"),
            ("other setting", "optimizer constants"),
            "wpe",
        ),
        Fault(
            "no clip",
            (
                ("../../mingpt/trainer.py", "torch.nn.utils.clip_grad_norm_(", "len(("),
                ("../../mingpt/trainer.py", "config.grad_norm_clip)", "config.grad_norm_clip))"),
            ),
            ("backward", "update"),
            ("clipping",),
        ),
        Fault(
            "attention scale",
            (("../../mingpt/model.py", "math.sqrt(k.size(-1))", "math.sqrt(C)"),),
            ("forward",),
            ("other setting",),
            "attn",
        ),
    ),
    ("--trainer.max_iters=6", "--trainer.num_workers=0", "--trainer.batch_size=32"),
    "projects/adder",
)

_NANO_NORM = "self.bias, 1e-5)"
_NANO = Subject(
    "karpathy+nanoGPT",
    ("train.py", "model.py", "configurator.py"),
    "train.py",
    (("train.py", "# initialize a GradScaler", f"{RECORD}\n# initialize a GradScaler"),),
    (
        Fault(
            "rate",
            (("train.py", "decay_lr else", "decay_lr * 0 else"),),
            UPDATE,
            ("optimizer constants", "schedule"),
        ),
        Fault(
            "betas",
            (("train.py", "beta2 = 0.95", "beta2 = 0.99"),),
            UPDATE,
            OPTIMIZER,
            steps=(0, 1),
        ),
        Fault(
            "decay",
            (("train.py", "weight_decay = 1e-1", "weight_decay = 5e-1"),),
            UPDATE,
            OPTIMIZER,
        ),
        Fault(
            "schedule",
            (("train.py", "get_lr(iter_num)", "get_lr(iter_num + 1)"),),
            UPDATE,
            ("schedule", "optimizer constants"),
        ),
        Fault(
            "accumulation",
            (("train.py", "loss = loss / gradient_accumulation_steps", "loss = loss"),),
            ("loss", "backward", "update"),
            ("loss reduction",),
        ),
        Fault(
            "zero_grad",
            (("train.py", "optimizer.zero_grad(set_to_none=True)", "pass"),),
            ("backward", "update"),
            ("other setting",),
            steps=(1,),
            says=NEVER,
        ),
        Fault(
            "no clip",
            (("train.py", "if grad_clip != 0.0:", "if False:"),),
            ("backward", "update"),
            ("clipping",),
        ),
        Fault(
            "norm eps",
            (("model.py", _NANO_NORM, "self.bias, 1e-3)"),),
            ("forward",),
            ("eps",),
            "ln_1",
        ),
        Fault("init", (("model.py", "std=0.02/", "std=0.03/"),), ("start",), ("initialisation",)),
        Fault(
            "untied",
            (
                (
                    "model.py",
                    "self.transformer.wte.weight = self.lm_head.weight",
                    "self.transformer.wte.weight.data = self.lm_head.weight.data.clone()",
                ),
            ),
            ("start", "backward", "update"),
            ("tied weights",),
        ),
        Fault(
            "gelu",
            (("model.py", "nn.GELU()", "nn.GELU(approximate='tanh')"),),
            ("forward",),
            ("activation variant",),
            "gelu",
        ),
        Fault(
            "label offset",
            (("train.py", "data[i+1:i+1+block_size]", "data[i+2:i+2+block_size]"),),
            ("input", "loss"),
            ("label", "data order"),
        ),
        Fault(
            "data",
            (("train.py", "len(data) - block_size,", "len(data) - block_size - 7,"),),
            ("input",),
            DATA,
        ),
        Fault(
            "bfloat16",
            (("train.py", "nullcontext() if", "torch.autocast('cpu', torch.bfloat16) if"),),
            ("forward",),
            ("dtype rule", "missing cast", "op list"),
        ),
        Fault(
            "frozen",
            (
                (
                    "train.py",
                    "# training loop\n",
                    "model.transformer.wpe.weight.requires_grad_(False)\n",
                ),
            ),
            ("backward", "update"),
            ("other setting", "optimizer constants"),
            "wpe",
        ),
        Fault(
            "not causal",
            (("model.py", "is_causal=True", "is_causal=False"),),
            ("forward",),
            ("other setting",),
            "attn",
        ),
    ),
    (
        "--device=cpu",
        "--compile=False",
        "--dataset=made",
        "--n_layer=2",
        "--n_head=2",
        "--n_embd=32",
        "--block_size=16",
        "--batch_size=8",
        "--max_iters=5",
        "--eval_interval=1000",
        "--eval_iters=1",
        "--gradient_accumulation_steps=2",
        "--dtype=float32",
        "--warmup_iters=10",
        "--lr_decay_iters=100",
        "--grad_clip=0.1",
    ),
    data="tokens",
)

_WORDS = (("main.py", "criterion = nn.NLLLoss()", f"criterion = nn.NLLLoss()\n{RECORD}"),)
_ADAMW = "torch.optim.AdamW(model.parameters(), lr=args.lr)"


def _words_faults() -> tuple[Fault, ...]:
    return (
        Fault("rate", (("main.py", "lr=args.lr)", "lr=2 * args.lr)"),), UPDATE, OPTIMIZER),
        Fault(
            "betas",
            (("main.py", "lr=args.lr)", "lr=args.lr, betas=(0.8, 0.999))"),),
            UPDATE,
            OPTIMIZER,
            steps=(0, 1),
        ),
        Fault(
            "decay",
            (("main.py", "lr=args.lr)", "lr=args.lr, weight_decay=0.3)"),),
            UPDATE,
            OPTIMIZER,
        ),
        Fault(
            "zero_grad",
            (("main.py", "optimizer.zero_grad()", "pass"),),
            ("backward", "update"),
            ("other setting",),
            steps=(1,),
            says=NEVER,
        ),
        Fault(
            "init",
            (("model.py", "initrange = 0.1", "initrange = 0.2"),),
            ("start",),
            ("initialisation",),
        ),
        Fault(
            "label offset",
            (
                (
                    "main.py",
                    "source[i+1:i+1+seq_len].view(-1)",
                    "(source[i+1:i+1+seq_len].view(-1) + 1) % len(corpus.dictionary)",
                ),
            ),
            ("input", "loss"),
            ("label",),
        ),
        Fault(
            "loss sum",
            (("main.py", "nn.NLLLoss()", "nn.NLLLoss(reduction='sum')"),),
            ("loss",),
            ("loss reduction",),
        ),
        Fault(
            "no clip",
            (
                ("main.py", "torch.nn.utils.clip_grad_norm_(", "len(("),
                ("main.py", "args.clip)", "args.clip))"),
            ),
            ("backward", "update"),
            ("clipping",),
        ),
        Fault(
            "data", (("main.py", "data.view(bsz, -1).t()", "data.view(-1, bsz)"),), ("input",), DATA
        ),
        Fault(
            "accumulated rate",
            (
                (
                    "main.py",
                    "            optimizer.step()",
                    "            optimizer.param_groups[0]['lr'] *= 1.5; optimizer.step()",
                ),
            ),
            UPDATE,
            ("schedule", "optimizer constants"),
        ),
    )


_WORDS_LSTM = Subject(
    "pytorch+examples",
    ("word_language_model/main.py", "word_language_model/model.py", "word_language_model/data.py"),
    "main.py",
    _WORDS,
    (
        *_words_faults(),
        Fault(
            "dropout off",
            (("model.py", "output = self.drop(output)", "output = output"),),
            ("forward",),
            ("random state", "other setting"),
            "drop",
        ),
        Fault(
            "bfloat16",
            (
                (
                    "model.py",
                    "self.decoder(output)",
                    "self.decoder.weight.mul(1).bfloat16().float() @ output.transpose(1, 2); "
                    "decoded = decoded.transpose(1, 2) + self.decoder.bias",
                ),
            ),
            ("forward",),
            ("missing cast", "dtype rule", "op list", "other setting"),
            "decoder",
        ),
        Fault(
            "frozen",
            (("main.py", RECORD, "model.encoder.weight.requires_grad_(False); " + RECORD),),
            ("backward", "update"),
            ("other setting", "optimizer constants"),
            "encoder",
        ),
        Fault(
            "hidden lost",
            (
                (
                    "main.py",
                    "hidden = repackage_hidden(hidden)\n            output",
                    "hidden = model.init_hidden(args.batch_size)\n            output",
                ),
            ),
            ("input", "forward"),
            ("other setting", "unknown"),
            "",
            (1,),
        ),
        Fault(
            "gate bias",
            (
                (
                    "model.py",
                    "self.init_weights()\n",
                    "self.init_weights(); self.rnn.bias_hh_l0.data[20:40] = 1\n",
                ),
            ),
            ("start",),
            ("initialisation",),
            "rnn",
        ),
    ),
    (
        "--use-optimizer",
        "--lr",
        "0.01",
        "--epochs",
        "1",
        "--emsize",
        "20",
        "--nhid",
        "20",
        "--batch_size",
        "8",
        "--bptt",
        "20",
        "--clip",
        "0.05",
    ),
    "word_language_model",
    data="words",
)

_KERAS_FIT = 'optimizer="adam"'
_KERAS = Subject(
    "",
    ("keras_mnist.py",),
    "main.py",
    (
        (
            "main.py",
            "keras.datasets.mnist.load_data()",
            "[(np.random.default_rng(n).integers(0, 255, (c, 28, 28)), np.random.default_rng(n)"
            ".integers(0, 10, c)) for n, c in ((1, 400), (2, 100))]",
        ),
        ("main.py", "model.summary()", RECORD),
        ("main.py", "num_classes = 10", "num_classes = 10; keras.utils.set_random_seed(0)"),
        ("main.py", "batch_size = 128", "batch_size = 40"),
        ("main.py", "epochs = 15", "epochs = 1"),
    ),
    (
        Fault(
            "rate",
            (("main.py", _KERAS_FIT, "optimizer=keras.optimizers.Adam(2e-3)"),),
            UPDATE,
            OPTIMIZER,
        ),
        Fault(
            "betas",
            (("main.py", _KERAS_FIT, "optimizer=keras.optimizers.Adam(beta_2=0.9)"),),
            UPDATE,
            OPTIMIZER,
            steps=(0, 1),
        ),
        Fault(
            "decay",
            (("main.py", _KERAS_FIT, "optimizer=keras.optimizers.AdamW(weight_decay=0.1)"),),
            UPDATE,
            OPTIMIZER,
        ),
        Fault(
            "dropout rate",
            (("main.py", "Dropout(0.5)", "Dropout(0.4)"),),
            ("forward",),
            ("random state", "other setting"),
            "dropout",
        ),
        Fault(
            "init",
            (
                (
                    "main.py",
                    'activation="softmax"',
                    'activation="softmax", kernel_initializer="he_normal"',
                ),
            ),
            ("start",),
            ("initialisation",),
        ),
        Fault(
            "scaling",
            (("main.py", '"float32") / 255\nx_test', '"float32") / 256\nx_test'),),
            ("input",),
            ("other setting", "data order"),
        ),
        Fault(
            "label offset",
            (
                (
                    "main.py",
                    "y_train = keras.utils.to_categorical(y_train",
                    "y_train = keras.utils.to_categorical((y_train + 1) % 10",
                ),
            ),
            ("input", "loss"),
            ("label",),
        ),
        Fault(
            "loss sum",
            (
                (
                    "main.py",
                    'loss="categorical_crossentropy"',
                    'loss=keras.losses.CategoricalCrossentropy(reduction="sum")',
                ),
            ),
            ("loss",),
            ("loss reduction",),
        ),
        Fault(
            "label smoothing",
            (
                (
                    "main.py",
                    'loss="categorical_crossentropy"',
                    "loss=keras.losses.CategoricalCrossentropy(label_smoothing=0.1)",
                ),
            ),
            ("loss",),
            ("label",),
            says=("smooth",),
        ),
        Fault(
            "bfloat16",
            (
                (
                    "main.py",
                    'Conv2D(64, kernel_size=(3, 3), activation="relu"',
                    'Conv2D(64, kernel_size=(3, 3), activation="relu", dtype="mixed_bfloat16"',
                ),
            ),
            ("forward",),
            ("dtype rule", "missing cast"),
            "conv2d_1",
        ),
        Fault(
            "frozen",
            (
                (
                    "main.py",
                    'Conv2D(32, kernel_size=(3, 3), activation="relu"',
                    'Conv2D(32, kernel_size=(3, 3), activation="relu", trainable=False',
                ),
            ),
            ("backward", "update"),
            ("other setting", "optimizer constants"),
            "conv2d",
        ),
        Fault(
            "clip",
            (("main.py", _KERAS_FIT, "optimizer=keras.optimizers.Adam(clipnorm=0.001)"),),
            ("backward", "update"),
            ("clipping",),
        ),
        Fault(
            "data",
            (("main.py", "validation_split=0.1", "validation_split=0.1, shuffle=False"),),
            ("input",),
            DATA,
        ),
        Fault(
            "activation",
            (
                (
                    "main.py",
                    'Conv2D(64, kernel_size=(3, 3), activation="relu"',
                    'Conv2D(64, kernel_size=(3, 3), activation="gelu"',
                ),
            ),
            ("forward",),
            ("activation variant", "other setting"),
            "conv2d_1",
        ),
        Fault(
            "padding",
            (
                (
                    "main.py",
                    "MaxPooling2D(pool_size=(2, 2)),\n        layers.Flatten",
                    "AveragePooling2D(pool_size=(2, 2)),\n        layers.Flatten",
                ),
            ),
            ("forward",),
            ("other setting",),
            "pool",
        ),
    ),
)

_VAE = Subject(
    "pytorch+examples",
    ("vae/main.py",),
    "main.py",
    (("main.py", "optimizer = optim.Adam", f"{RECORD}\noptimizer = optim.Adam"),),
    (
        Fault("rate", (("main.py", "lr=1e-3", "lr=3e-3"),), UPDATE, OPTIMIZER),
        Fault(
            "betas",
            (("main.py", "lr=1e-3", "lr=1e-3, betas=(0.5, 0.999)"),),
            UPDATE,
            OPTIMIZER,
            steps=(0, 1),
        ),
        Fault("decay", (("main.py", "lr=1e-3", "lr=1e-3, weight_decay=0.1"),), UPDATE, OPTIMIZER),
        Fault(
            "zero_grad",
            (("main.py", "optimizer.zero_grad()", "pass"),),
            ("backward", "update"),
            ("other setting",),
            steps=(1,),
            says=NEVER,
        ),
        Fault(
            "std",
            (("main.py", "torch.exp(0.5*logvar)", "torch.exp(logvar)"),),
            ("forward",),
            ("other setting", "unknown"),
            "fc3",
        ),
        Fault(
            "loss mean",
            (("main.py", "reduction='sum'", "reduction='mean'"),),
            ("loss",),
            ("loss reduction",),
        ),
        Fault(
            "KL weight",
            (("main.py", "return BCE + KLD", "return BCE + 2 * KLD"),),
            ("loss",),
            ("loss reduction", "other setting"),
        ),
        Fault(
            "data",
            (("main.py", "shuffle=True, **kwargs", "shuffle=False, **kwargs"),),
            ("input",),
            DATA,
        ),
        Fault(
            "activation",
            (("main.py", "h3 = F.relu(", "h3 = F.gelu("),),
            ("forward",),
            ("activation variant", "other setting", "unknown"),
            "fc4",
        ),
        Fault(
            "bfloat16",
            (
                (
                    "main.py",
                    "self.fc4(h3)",
                    "F.linear(h3.bfloat16(), self.fc4.weight.bfloat16(), "
                    "self.fc4.bias.bfloat16()).float()",
                ),
            ),
            ("forward",),
            ("missing cast", "dtype rule", "other setting", "op list"),
            "fc4",
        ),
        Fault(
            "frozen",
            (
                (
                    "main.py",
                    "optimizer = optim",
                    "model.fc21.weight.requires_grad_(False)\noptimizer = optim",
                ),
            ),
            ("backward", "update"),
            ("other setting", "optimizer constants"),
            "fc21",
        ),
        Fault(
            "init",
            (
                (
                    "main.py",
                    "optimizer = optim",
                    "nn.init.xavier_uniform_(model.fc1.weight)\noptimizer = optim",
                ),
            ),
            ("start", "forward"),
            ("initialisation",),
            "fc1",
        ),
    ),
    ("--batch-size", "32", "--epochs", "1"),
    "vae",
    "digits",
    192,
)

_DIGITS = Subject(
    "pytorch+examples",
    ("mnist/main.py",),
    "main.py",
    (("main.py", "model = Net().to(device)", f"model = Net().to(device); {RECORD}"),),
    (
        Fault("rate", (("main.py", "lr=args.lr)", "lr=0.5 * args.lr)"),), UPDATE, OPTIMIZER),
        Fault("rho", (("main.py", "lr=args.lr)", "lr=args.lr, rho=0.5)"),), UPDATE, OPTIMIZER),
        Fault(
            "schedule",
            (
                (
                    "main.py",
                    "        optimizer.step()",
                    "        optimizer.step(); optimizer.param_groups[0]['lr'] *= 0.5",
                ),
            ),
            UPDATE,
            ("schedule", "optimizer constants"),
            steps=(1,),
        ),
        Fault(
            "zero_grad",
            (("main.py", "optimizer.zero_grad()", "pass"),),
            ("backward", "update"),
            ("other setting",),
            steps=(1,),
            says=NEVER,
        ),
        Fault(
            "dropout rate",
            (("main.py", "nn.Dropout(0.25)", "nn.Dropout(0.3)"),),
            ("forward",),
            ("random state", "other setting"),
            "dropout1",
        ),
        Fault(
            "label offset",
            (
                (
                    "main.py",
                    "target.to(device)\n        optimizer",
                    "(target + 1).to(device) % 10\n        optimizer",
                ),
            ),
            ("input", "loss"),
            ("label",),
        ),
        Fault(
            "loss sum",
            (
                (
                    "main.py",
                    "loss = F.nll_loss(output, target)",
                    "loss = F.nll_loss(output, target, reduction='sum')",
                ),
            ),
            ("loss",),
            ("loss reduction",),
        ),
        Fault(
            "normalisation",
            (("main.py", "(0.3081,)", "(0.5,)"),),
            ("input",),
            ("other setting", "data order"),
        ),
        Fault(
            "data",
            (
                (
                    "main.py",
                    "{'batch_size': args.batch_size}",
                    "{'batch_size': args.batch_size, 'shuffle': True}",
                ),
            ),
            ("input",),
            DATA,
        ),
        Fault(
            "bfloat16",
            (
                (
                    "main.py",
                    "output = model(data)\n        loss",
                    "with torch.autocast('cpu', torch.bfloat16): output = model(data)\n"
                    "        loss",
                ),
            ),
            ("forward",),
            ("missing cast", "dtype rule", "op list"),
            "conv1",
        ),
        Fault(
            "double softmax",
            (
                (
                    "main.py",
                    "output = F.log_softmax(x, dim=1)",
                    "output = F.log_softmax(F.softmax(x, dim=1), dim=1)",
                ),
            ),
            ("forward", "loss"),
            ("other setting", "unknown", "activation variant"),
        ),
        Fault(
            "missing relu",
            (("main.py", "x = self.fc1(x)\n        x = F.relu(x)", "x = self.fc1(x)"),),
            ("forward",),
            ("other setting", "activation variant", "unknown"),
            "dropout2",
        ),
        Fault(
            "frozen",
            (("main.py", RECORD, "model.conv1.requires_grad_(False); " + RECORD),),
            ("backward", "update"),
            ("other setting", "optimizer constants"),
            "conv1",
        ),
    ),
    ("--epochs", "1", "--batch-size", "32", "--no-accel"),
    "mnist",
    "digits",
    192,
)

_WORDS_TRANSFORMER = Subject(
    "pytorch+examples",
    ("word_language_model/main.py", "word_language_model/model.py", "word_language_model/data.py"),
    "main.py",
    _WORDS,
    (
        *_words_faults(),
        Fault(
            "embedding scale",
            (("model.py", " * math.sqrt(self.ninp)", ""),),
            ("forward",),
            ("other setting", "unknown"),
            "pos_encoder",
        ),
        Fault(
            "no mask",
            (("model.py", "has_mask=True", "has_mask=False"),),
            ("forward",),
            ("other setting", "unknown"),
            "encoder",
        ),
        Fault(
            "norm eps",
            (
                (
                    "model.py",
                    "self.init_weights()\n\n    def _gen",
                    "self.encoder.layers[0].norm1.eps = 1e-3; self.init_weights()\n\n    def _gen",
                ),
            ),
            ("forward",),
            ("eps",),
            "norm1",
        ),
    ),
    (
        "--model",
        "Transformer",
        "--use-optimizer",
        "--lr",
        "0.001",
        "--epochs",
        "1",
        "--emsize",
        "20",
        "--nhid",
        "20",
        "--batch_size",
        "8",
        "--bptt",
        "20",
        "--clip",
        "0.05",
    ),
    "word_language_model",
    data="words",
)

SUBJECTS = {
    "minGPT": _ADDER,
    "nanoGPT": _NANO,
    "words LSTM": _WORDS_LSTM,
    "Keras digits": _KERAS,
    "VAE": _VAE,
    "digits": _DIGITS,
    "words transformer": _WORDS_TRANSFORMER,
}

HELD_OUT = ("VAE", "digits", "words transformer")
"""Not looked at while rules were written: scored once, at the end."""
