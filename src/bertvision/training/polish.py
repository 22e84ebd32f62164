"""Polish heads: several cheap epochs on hidden states that one clean pass of the encoder has collected."""

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from bertvision.heads.base import Head
from bertvision.randomness import RandomStream
from bertvision.states import HiddenStates
from bertvision.training.batches import bucketed
from bertvision.training.collect import TokenStates
from bertvision.training.heads import HeadTrainer

BATCH_SIZE = 32
TOKEN_BATCH_SIZE = 16  # windows of tokens, each of which is a hundred small examples


def steps_of(states: HiddenStates | TokenStates, epochs: int) -> int:
    size = TOKEN_BATCH_SIZE if isinstance(states, TokenStates) else BATCH_SIZE
    return epochs * -(-len(states) // size)


def polish(
    heads: dict[str, Head],
    states: HiddenStates | TokenStates,
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
    steps = steps_of(states, epochs)
    done, device = 0, next(iter(heads.values())).output.weight.device
    for batches in _epochs(states, epochs, seed):
        for batch in batches:
            trainer.accumulate(states.take(batch).to(device), targets[batch].to(device))
            trainer.step(1 - done / steps)
            done += 1
            tick(1)


def _epochs(states: HiddenStates | TokenStates, epochs: int, seed: int) -> Iterator[Iterable[Tensor]]:
    order = RandomStream("polish-order", seed)
    for epoch in range(epochs):
        if isinstance(states, TokenStates):
            yield [torch.from_numpy(rows) for rows in bucketed(states.lengths, TOKEN_BATCH_SIZE, seed, epoch)]
        else:
            with order.active():
                rows = torch.randperm(len(states))
            yield rows.split(BATCH_SIZE)
