"""Modules that Lightning's Trainer trains in several ways; what became of them in ``made``."""

import os
import tempfile

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import (
    Callback,
    EarlyStopping,
    LearningRateMonitor,
    ModelCheckpoint,
)
from pytorch_lightning.loggers import CSVLogger
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

made = []
X = torch.linspace(-1.03, 2.1, 33).view(11, 3)
Y = torch.sin(2 * X.sum(1, keepdim=True))


class Net(nn.Module):
    def __init__(self, width, plain=False):
        super().__init__()
        self.one = nn.Linear(3, width, bias=False)
        self.norm = nn.Identity() if plain else nn.BatchNorm1d(width)
        self.two = nn.Linear(width, 1)
        for p in self.parameters():
            p.data.copy_(torch.linspace(-1.0, 0.83, p.numel()).view(p.shape))

    def forward(self, x):
        return self.two(torch.tanh(self.norm(self.one(x))))


class Lit(pl.LightningModule):
    def __init__(self, width=4, lr=0.05, way="epoch", **others):
        super().__init__()
        self.save_hyperparameters()
        self.net = Net(width, plain="plain" in others)
        self.criterion = nn.MSELoss()

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = self.criterion(self(x), y)
        self.log("loss", loss, on_step=True, on_epoch=True, prog_bar=True)
        self.log("count", float(batch_idx))
        made.append(loss.item())
        return {"loss": loss, "more": 1} if batch_idx % 2 else loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        loss = functional.mse_loss(self(x), y)
        self.log("val", loss)
        self.log_dict({"worst": loss, "most": loss.item()}, on_epoch=True, reduce_fx=torch.max)
        return loss

    def test_step(self, batch, batch_idx):
        x, y = batch
        self.log("test", functional.l1_loss(self(x), y), batch_size=len(x))

    def predict_step(self, batch, batch_idx):
        return self(batch[0]).sum()

    def on_train_epoch_end(self):
        made.append(self.current_epoch + self.global_step / 100)
        self.log("seen", torch.tensor(float(self.global_step)))

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=self.hparams.lr, eps=1e-3)
        if self.hparams.way == "alone":
            return optimizer
        if self.hparams.way == "epoch":
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.7)]
        if self.hparams.way == "step":
            schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1 / (1 + n))
            rows = {"scheduler": schedule, "interval": "step", "frequency": 2}
            return {"optimizer": optimizer, "lr_scheduler": rows}
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
        return {"optimizer": optimizer, "lr_scheduler": schedule, "monitor": "val"}


class Data(pl.LightningDataModule):
    def __init__(self, size=3):
        super().__init__()
        self.save_hyperparameters()

    def setup(self, stage):
        self.whole = TensorDataset(X, Y)

    def train_dataloader(self):
        return DataLoader(self.whole, batch_size=self.hparams.size)

    def val_dataloader(self):
        return DataLoader(self.whole, batch_size=4)

    test_dataloader = val_dataloader


HOOKS = (
    *("on_fit_start", "on_fit_end", "on_sanity_check_start"),
    *("on_sanity_check_end", "on_train_start", "on_train_end"),
    *("on_train_epoch_start", "on_train_epoch_end", "on_validation_start"),
    *("on_validation_end", "on_validation_epoch_start", "on_validation_epoch_end"),
    *("on_train_batch_start", "on_train_batch_end", "on_validation_batch_start"),
    *("on_validation_batch_end", "on_before_zero_grad", "on_before_backward"),
    *("on_after_backward", "on_before_optimizer_step"),
)


class Order(Callback):
    """The order in which hooks are called."""

    def __init__(self):
        self.names = []


def noted(number):
    def hook(self, trainer, module, *_):
        self.names.append(number)

    return hook


for place, name in enumerate(HOOKS):
    setattr(Order, name, noted(place))


def kept(module):
    for p in module.parameters():
        made.extend(p.detach().reshape(-1).tolist())


def rates(trainer):
    made.extend(group["lr"] for one in trainer.optimizers for group in one.param_groups)


def told(trainer, *names):
    made.extend(float(trainer.callback_metrics[name]) for name in names)


def trained(folder, module, **settings):
    silent = {"enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(
        accelerator="auto", default_root_dir=folder, **{"logger": False, **silent, **settings}
    )
    trainer.fit(module, datamodule=Data())
    kept(module)
    rates(trainer)
    made.extend((trainer.current_epoch, trainer.global_step))
    return trainer


def plain(folder):
    order = Order()
    module = Lit(lr=0.03, name="x")
    made.append(sorted(module.hparams) == ["lr", "name", "way", "width"])
    saver = ModelCheckpoint(dirpath=folder, filename="{epoch}-{val:.3f}", monitor="val", mode="min")
    logger = CSVLogger(folder)
    trainer = trained(
        folder,
        module,
        max_epochs=3,
        gradient_clip_val=0.3,
        accumulate_grad_batches=2,
        callbacks=[order, saver, LearningRateMonitor("epoch")],
        log_every_n_steps=1,
        logger=logger,
    )
    made.extend(order.names)
    told(trainer, "loss_step", "loss_epoch", "count", "val", "worst", "most", "seen")
    made.append(float(saver.best_model_score))
    made.append(os.path.basename(saver.best_model_path).startswith("epoch="))
    made.extend(trainer.test(module, datamodule=Data(), verbose=False)[0].values())
    made.extend(trainer.validate(module, datamodule=Data(), verbose=False)[0].values())
    found = trainer.predict(module, DataLoader(TensorDataset(X, Y), batch_size=5))
    made.extend(one.item() for one in found)
    again = Lit.load_from_checkpoint(saver.best_model_path)
    made.append(again.hparams.lr)
    kept(again)


def by_steps(folder):
    module = Lit(way="step")
    trainer = trained(
        folder,
        module,
        max_steps=7,
        max_epochs=-1,
        val_check_interval=2,
        limit_val_batches=2,
        num_sanity_val_steps=0,
        enable_checkpointing=False,
        gradient_clip_val=0.05,
        gradient_clip_algorithm="value",
    )
    told(trainer, "val")


def by_plateau(folder):
    stopper = EarlyStopping(monitor="val", patience=2, min_delta=0.02)
    module = Lit(way="plateau", lr=0.1)
    trainer = trained(folder, module, max_epochs=9, limit_train_batches=0.5, callbacks=stopper)
    made.extend((stopper.stopped_epoch, stopper.wait_count))
    told(trainer, "val")


def gone_on(folder):
    saver = ModelCheckpoint(dirpath=folder, save_last=True)
    first = Lit()
    trained(folder, first, max_epochs=2, callbacks=[saver])
    module = Lit()
    trainer = pl.Trainer(
        accelerator="auto",
        max_epochs=3,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, datamodule=Data(), ckpt_path=saver.last_model_path)
    kept(module)
    rates(trainer)


class Two(pl.LightningModule):
    """Two networks, each with an optimizer that the step itself runs."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.maker, self.judge = Net(3, plain=True), Net(2, plain=True)

    def training_step(self, batch, batch_idx):
        x, y = batch
        one, other = self.optimizers()
        self.toggle_optimizer(one)
        one.zero_grad()
        loss = functional.mse_loss(self.maker(x), y) - 0.1 * self.judge(x * self.maker(x)).mean()
        self.manual_backward(loss)
        one.step()
        self.untoggle_optimizer(one)
        made.append(loss.item())
        other.zero_grad()
        loss = functional.mse_loss(self.judge(x * self.maker(x).detach()), y)
        self.manual_backward(loss)
        self.clip_gradients(other, gradient_clip_val=0.4)
        other.step()
        self.log("judged", loss, on_epoch=True)

    def on_train_epoch_end(self):
        self.lr_schedulers().step()

    def configure_optimizers(self):
        one = torch.optim.SGD(self.maker.parameters(), lr=0.05, momentum=0.9)
        other = torch.optim.AdamW(self.judge.parameters(), lr=0.02, eps=1e-3)
        return [one, other], [torch.optim.lr_scheduler.StepLR(one, 1, gamma=0.5)]


class Handed(Lit):
    """Hooks of a step of its own."""

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * (batch_idx + 1)
        optimizer.step(closure=optimizer_closure)

    def configure_gradient_clipping(self, optimizer, gradient_clip_val, gradient_clip_algorithm):
        self.clip_gradients(optimizer, 0.2, "norm")

    def lr_scheduler_step(self, scheduler, metric):
        made.append(-1.0)
        scheduler.step()

    def on_train_batch_start(self, batch, batch_idx):
        return -1 if batch_idx == 2 and self.current_epoch == 1 else None


def run(half):
    with tempfile.TemporaryDirectory() as folder:
        if half:
            trained(
                folder, Lit(plain=True), max_epochs=3, precision="16-mixed", gradient_clip_val=0.5
            )
            trained(folder, Two(), max_epochs=2, precision="16-mixed")
            return
        plain(os.path.join(folder, "plain"))
        by_steps(folder)
        by_plateau(folder)
        gone_on(os.path.join(folder, "on"))
        trained(folder, Two(), max_epochs=2)
        trained(folder, Handed(), max_epochs=2, check_val_every_n_epoch=2)


run(False)
split = len(made)
run(True)
