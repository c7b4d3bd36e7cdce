"""A residual vector-quantised autoencoder of motion: 1-D convolutions around the ResidualVQ of vector-quantize-pytorch."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from vector_quantize_pytorch import ResidualVQ

# Two layers of stride 2: windows have a multiple of so many frames.
FRAMES_PER_CODE = 4


class Residual(nn.Module):
    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        wide = nn.Conv1d(width, width, 3, padding=dilation, dilation=dilation)
        self.layers = nn.Sequential(nn.SiLU(), wide, nn.SiLU(), nn.Conv1d(width, width, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layers(x)


class Autoencoder(nn.Module):
    """Make it once the process group exists: the codebooks are synchronised among its ranks.

    `mean` and `std` (channels) bring all channels to one scale; they are part of the state, and losses are in units of `std`.
    """

    def __init__(self, mean: torch.Tensor, std: torch.Tensor, *, width: int, quantizers: int, codes: int) -> None:
        super().__init__()
        self.mean: torch.Tensor
        self.std: torch.Tensor
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)
        down, up = [], []
        for _ in range(2):
            down += [nn.Conv1d(width, width, 4, stride=2, padding=1), Residual(width, 3), Residual(width, 1)]
            up += [Residual(width, 3), Residual(width, 1), nn.Upsample(scale_factor=2), nn.Conv1d(width, width, 3, padding=1)]
        self.encoder = nn.Sequential(nn.Conv1d(len(mean), width, 3, padding=1), *down)
        self.decoder = nn.Sequential(*up, nn.SiLU(), nn.Conv1d(width, len(mean), 3, padding=1))
        self.quantizer = ResidualVQ(
            dim=width,
            num_quantizers=quantizers,
            codebook_size=codes,
            kmeans_init=True,
            decay=0.95,
            threshold_ema_dead_code=2,
            commitment_weight=0.25,
            # Plain straight-through gradients.
            rotation_trick=False,
            sync_codebook=dist.get_world_size() > 1,
        )

    def forward(self, motion: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Takes (batch, frames, channels). Returns the mean squared error, the commitment loss (0 in evaluations), the codes
        (batch, frames / 4, quantizers), and the squared error that the mean pose would have."""
        target = (motion - self.mean) / self.std
        encoded = self.encoder(target.transpose(1, 2)).transpose(1, 2)
        quantized, codes, commitment = self.quantizer(encoded)
        made = self.decoder(quantized.transpose(1, 2)).transpose(1, 2)
        return nn.functional.mse_loss(made, target), commitment.sum(), codes, target.detach().square().mean()


def watch(model: Autoencoder) -> nn.ModuleDict:
    """The model, and its codebooks as parameters that share their memory: `unhang.sync_check` compares no buffers, since ranks may differ in them."""
    floats = {name.replace(".", "_"): value for name, value in model.quantizer.state_dict().items() if value.is_floating_point()}
    books = nn.ParameterDict({name: nn.Parameter(value, requires_grad=False) for name, value in floats.items()})
    return nn.ModuleDict({"model": model, "codebooks": books})


def codebook_use(counts: torch.Tensor) -> dict[str, list[float]]:
    """For each quantizer the share of its codes that were chosen at all, and the perplexity: as many codes, chosen equally often, say as much."""
    share = counts.double() / counts.sum(1, keepdim=True).clamp(min=1)
    return {"usage": (counts > 0).double().mean(1).tolist(), "perplexity": torch.special.entr(share).sum(1).exp().tolist()}
