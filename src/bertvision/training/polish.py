"""Polish heads: several cheap epochs on hidden states that one clean pass of the encoder has collected."""

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from bertvision.heads.base import Batches, Head
from bertvision.heads.variants import parse
from bertvision.randomness import RandomStream
from bertvision.states import HiddenStates
from bertvision.training.batches import bucketed
from bertvision.training.collect import TokenStates
from bertvision.training.heads import HeadTrainer

BATCH_SIZE = 32
SOLVE_ROWS = 512  # examples at a time
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
    ranks: Tensor | None = None,
    started: bool = False,
    tick: Callable[[int], object] = lambda steps: None,
) -> None:
    """Train `heads` in place; the learning rate falls linearly to zero. All heads see the same batches, of which those
    that may see only a share of the data use the examples with a low rank. Heads that have a start in closed form
    take it, unless they are `started` already."""
    waiting = {label: head for label, head in heads.items() if head.solved and not (started and head.trained)}
    solve_all(waiting, lambda share: _shown(states, targets, ranks, share), kind)
    trainer = HeadTrainer({label: head for label, head in heads.items() if head.trained}, kind, lr=lr, seed=seed)
    if not trainer.heads:
        return
    steps = steps_of(states, epochs)
    done, device = 0, next(iter(heads.values())).output.weight.device
    for batches in _epochs(states, epochs, seed):
        for batch in batches:
            shown = ranks[batch].to(device) if ranks is not None else None
            trainer.accumulate(states.take(batch).to(device), targets[batch].to(device), ranks=shown)
            trainer.step(1 - done / steps)
            done += 1
            tick(1)


def solve_all(heads: dict[str, Head], batches: Callable[[float], Batches], kind: str) -> None:
    """Let heads find their weights in closed form, each from the share of the examples that it may see; those that
    look for the same find it once."""
    found: dict[tuple[object, ...], Head] = {}
    for label, head in heads.items():
        share = parse(label).data
        same = (share, head.layers, head.views, head.normalised)
        if same in found:
            head.solve_like(found[same])
        elif share > 0:
            head.solve(batches(share), kind)
            found[same] = head


def _shown(states: HiddenStates | TokenStates, targets: Tensor, ranks: Tensor | None, share: float) -> Batches:
    rows = torch.arange(len(states))
    rows = rows if ranks is None else rows[ranks < share]
    return lambda: ((states.take(part), targets[part]) for part in rows.split(SOLVE_ROWS))


def _epochs(states: HiddenStates | TokenStates, epochs: int, seed: int) -> Iterator[Iterable[Tensor]]:
    order = RandomStream("polish-order", seed)
    for epoch in range(epochs):
        if isinstance(states, TokenStates):
            yield [torch.from_numpy(rows) for rows in bucketed(states.lengths, TOKEN_BATCH_SIZE, seed, epoch)]
        else:
            with order.active():
                rows = torch.randperm(len(states))
            yield rows.split(BATCH_SIZE)
