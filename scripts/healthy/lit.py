"""Lightning's Trainer with two processes on the CPU (ddp or ddp_spawn), a checkpoint and a progress bar."""

from __future__ import annotations

import sys

import lightning as L
import torch
from torch.utils.data import DataLoader, TensorDataset


class Model(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(16, 2)

    def training_step(self, batch, _):  # type: ignore[no-untyped-def]
        loss = torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])
        self.log("train_loss", loss, prog_bar=True, sync_dist=True)
        return loss

    def validation_step(self, batch, _):  # type: ignore[no-untyped-def]
        self.log("val_error", (self.layer(batch[0]).argmax(1) != batch[1]).float().mean())

    def configure_optimizers(self):  # type: ignore[no-untyped-def]
        return torch.optim.SGD(self.parameters(), lr=0.1)


if __name__ == "__main__":
    L.seed_everything(7)
    data = TensorDataset(torch.randn(256, 16), torch.randint(0, 2, (256,)))
    loaders = [DataLoader(data, batch_size=16, num_workers=1) for _ in range(2)]
    trainer = L.Trainer(accelerator="cpu", devices=2, strategy=sys.argv[1], max_epochs=2, log_every_n_steps=2, default_root_dir="lit")
    trainer.fit(Model(), *loaders)
