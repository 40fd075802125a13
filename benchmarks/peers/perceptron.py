"""A multilayer perceptron with two hidden layers: how well the same inputs can predict genes
without any network.

Letters: C cells, F inputs, N genes, T test cells.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH, STEPS, BATCH, RATE = 256, 1500, 256, 2e-3
VALIDATED, EVERY = (
    8,
    50,
)  # one in so many training cells chooses among the weights of every so many steps


class Perceptron(nn.Module):
    def __init__(self, inputs: int, genes: int):
        super().__init__()
        layers = [nn.Dropout(0.1), nn.Linear(inputs, WIDTH), nn.GELU(), nn.Dropout(0.5)]
        self.hidden = nn.Sequential(*layers, nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Dropout(0.5))
        self.read = nn.Parameter(torch.zeros(genes, WIDTH))
        self.bias = nn.Parameter(torch.zeros(genes))

    def forward(self, x: Tensor) -> Tensor:
        return self.hidden(x) @ self.read.T + self.bias


def predicted(
    x: np.ndarray, y: np.ndarray, test: np.ndarray, seed: int, device: str = "cpu"
) -> np.ndarray:
    """Standardised genes of the test cells, [T, N], by the weights that validate best.

    x [C, F] and y [C, N]: standardised inputs and genes of the training cells.   test [T, F].
    """
    torch.manual_seed(seed)
    inputs, genes, asked = (
        torch.as_tensor(each, dtype=torch.float32, device=device) for each in (x, y, test)
    )
    order = torch.randperm(len(inputs), device=device)
    judging, learning = order[: len(order) // VALIDATED], order[len(order) // VALIDATED :]
    net = Perceptron(inputs.shape[1], genes.shape[1]).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=RATE, weight_decay=0.3, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, RATE, total_steps=STEPS, pct_start=0.05
    )
    lowest, found = float("inf"), torch.zeros(len(asked), genes.shape[1])
    for step in range(STEPS):
        net.train()
        rows = learning[torch.randint(len(learning), (BATCH,), device=device)]
        loss = F.mse_loss(net(inputs[rows]), genes[rows])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if (step + 1) % EVERY == 0:
            net.eval()
            with torch.no_grad():
                error = F.mse_loss(net(inputs[judging]), genes[judging]).item()
                if error < lowest:
                    lowest, found = error, net(asked)
    return found.cpu().numpy()
