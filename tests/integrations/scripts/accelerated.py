import common
import torch
from accelerate import Accelerator

from unhang.integrations.accelerate import evaluate

accelerator = Accelerator(cpu=True)
plain = common.model()
model, optimizer, loader = accelerator.prepare(
    plain,
    torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9),
    torch.utils.data.DataLoader(common.TRAINED, batch_size=common.BATCH, shuffle=True, generator=torch.Generator().manual_seed(0)),
)
evaluations = []
for step, batch in enumerate(loader, 1):
    optimizer.zero_grad()
    accelerator.backward(model(**batch)["loss"])
    optimizer.step()
    if common.FAULT != "none" and step % 4 == 0:
        found = evaluate(
            accelerator,
            common.metrics_of,
            common.EVALUATED,
            model=model,
            batch_size=common.BATCH,
            global_step=step,
            deadline=common.DEADLINE_S,
        )
        evaluations.append(found.flat())
    if step == common.STEPS:
        break
common.leave(plain, evaluations)
