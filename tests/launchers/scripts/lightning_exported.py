"""A training with the Trainer and the loader settings that `unhang export lightning` wrote beside it."""

import lightning
import torch
from unhang_lightning import LOADER, trainer


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch, step):
        return self.layer(batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


torch.set_num_threads(1)
found = trainer(max_epochs=1, logger=False, enable_checkpointing=False, enable_model_summary=False, enable_progress_bar=False)
loader = torch.utils.data.DataLoader(torch.ones(120, 8), **LOADER)
found.fit(Model(), loader)
if found.is_global_zero:
    print("finished with", found.world_size, "processes on", found.strategy.process_group_backend)
    print("batches of", loader.batch_size, "steps", found.global_step, "timeout", found.strategy._timeout)
