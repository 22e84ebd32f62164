"""Polish heads: several cheap epochs on hidden states that one clean pass of the encoder has collected."""

from collections.abc import Callable

import torch
from torch import Tensor

from bertvision.heads.base import Head
from bertvision.randomness import RandomStream
from bertvision.states import HiddenStates
from bertvision.training.heads import HeadTrainer

BATCH_SIZE = 32


def steps_of(examples: int, epochs: int) -> int:
    return epochs * -(-examples // BATCH_SIZE)


def polish(
    heads: dict[str, Head],
    states: HiddenStates,
    targets: Tensor,
    kind: str,
    *,
    epochs: int,
    lr: float,
    seed: int,
    tick: Callable[[int], object] = lambda steps: None,
) -> None:
    """Train `heads` in place; the learning rate falls linearly to zero. All heads see the same batches."""
    trainer = HeadTrainer(heads, kind, lr=lr, seed=seed)
    order = RandomStream("polish-order", seed)
    steps = steps_of(len(states), epochs)
    done, device = 0, next(iter(heads.values())).output.weight.device
    for _ in range(epochs):
        with order.active():
            rows = torch.randperm(len(states))
        for batch in rows.split(BATCH_SIZE):
            trainer.accumulate(states.take(batch).to(device), targets[batch].to(device))
            trainer.step(1 - done / steps)
            done += 1
            tick(1)
