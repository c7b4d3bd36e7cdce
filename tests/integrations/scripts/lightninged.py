import sys

import common
import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

from unhang.integrations.lightning import GuardedEvaluation


class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.inner = common.model()

    def training_step(self, batch, index):
        return self.inner(**batch)["loss"]

    def evaluation_step(self, batch):
        return common.metrics_of(self.inner, batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


class Kept(L.Callback):
    def __init__(self):
        self.evaluations = []

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        if guard.result is not None and guard.result.step == trainer.global_step:
            self.evaluations.append(guard.result.flat())


guard = GuardedEvaluation(common.EVALUATED, batch_size=common.BATCH, every_n_steps=4, deadline=common.DEADLINE_S)
kept = Kept()
watching = [
    ModelCheckpoint(sys.argv[1], monitor="eval/a/accuracy", mode="max", every_n_train_steps=4),
    EarlyStopping("eval/a/loss", check_on_train_epoch_end=True),
]
trainer = L.Trainer(
    accelerator="cpu",
    strategy="ddp",
    devices=common.WORLD_SIZE,
    max_steps=common.STEPS,
    limit_val_batches=0,
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    enable_checkpointing=common.FAULT != "none",
    callbacks=[guard, kept, *watching] if common.FAULT != "none" else [],
)
module = Module()
torch.manual_seed(0)
trainer.fit(module, torch.utils.data.DataLoader(common.TRAINED, batch_size=common.BATCH, shuffle=True))
module.train()
common.leave(module.inner, kept.evaluations)
