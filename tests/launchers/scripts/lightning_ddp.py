"""A training with Lightning, started with plain python: its DDP strategy starts the second process itself."""

import os
import threading
from pathlib import Path

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy

torch.set_num_threads(1)
once = Path(os.environ["FAULT_ONCE"])


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch, step):
        if step == 20 and self.global_rank == 1 and not once.exists():
            once.touch()
            if os.environ["FAULT"] == "hang":
                threading.Event().wait()  # it stands here
            if os.environ["FAULT"] == "crash":
                raise ValueError("this sample has no label")  # it raises here
        threading.Event().wait(0.05)
        return self.layer(batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


trainer = lightning.Trainer(
    accelerator="cpu",
    devices=2,
    strategy=DDPStrategy(process_group_backend=os.environ["BACKEND"]),
    max_epochs=1,
    logger=False,
    enable_checkpointing=False,
    enable_model_summary=False,
    enable_progress_bar=False,
)
trainer.fit(Model(), torch.utils.data.DataLoader(torch.ones(120, 8), batch_size=1))
if trainer.is_global_zero:
    print("finished with", trainer.world_size, "processes on", trainer.strategy.process_group_backend)
