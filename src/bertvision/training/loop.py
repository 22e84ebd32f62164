"""The fine-tuning loop: plain PyTorch around Accelerate, with heads trained along on detached hidden states."""

import math
import time
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor

from bertvision.heads.base import Head
from bertvision.kinds import confined
from bertvision.prepare import Prepared
from bertvision.recipe import Recipe
from bertvision.states.batches import bucketed
from bertvision.states.hidden import places_of
from bertvision.states.passes import read
from bertvision.training.head_trainer import HeadTrainer
from bertvision.training.lead import lead_of
from bertvision.types import TRAIN

WEIGHT_DECAY = 0.01


def never() -> float:
    """No time is over: there is no limit."""
    return 0.0


def steps_in_epoch(windows: int, recipe: Recipe) -> int:
    return math.ceil(math.ceil(windows / recipe.batch_size) / recipe.accumulate)


class Loop:
    """Encoder, optimiser, lead, riding heads and position; `advance` runs to a step, `tensors`/`restore` keep it."""

    def __init__(
        self, setting: Prepared, riders: HeadTrainer, accelerator: Accelerator, lead: Head | None = None
    ) -> None:
        self.encoder, self.recipe, self.shape, self.reads = (
            setting.encoder,
            setting.recipe,
            setting.shape,
            setting.reads,
        )
        self.windows, self.targets = setting.windows[TRAIN], setting.train_targets()
        self.ranks, self.weights = setting.train_ranks(), setting.train_weights()
        self.riders, self.accelerator, self.lead = riders, accelerator, lead
        self.losses = setting.kind.losses
        self.lr, self.lead_name, self.batch_size = self.recipe.lr, self.recipe.lead, self.recipe.batch_size
        self.step = 0
        self.led = False  # is the lead initialised?
        self.seconds = {"encoder": 0.0, "heads": 0.0, "loop": 0.0, "start": 0.0}
        trained = [p for p in self.encoder.parameters() if p.requires_grad]
        matrices, vectors = [p for p in trained if p.ndim > 1], [p for p in trained if p.ndim < 2]
        groups = [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": vectors, "weight_decay": 0.0}]
        if lead is not None:
            groups.append({"params": list(lead.parameters()), "weight_decay": 0.0})  # solving regularised it
        self.optimizer = torch.optim.AdamW(groups, lr=self.lr, fused=True)
        self.parameters = trained
        # Dropout's stream: reset here, so that a run depends on its seed and not on what ran before it.
        torch.manual_seed(self.recipe.seed)

    @property
    def steps_per_epoch(self) -> int:
        return steps_in_epoch(len(self.windows), self.recipe)

    def step_of(self, mark: Fraction) -> int:
        """The optimiser step at which a mark lies, rounded to the nearest; only mark 0 is before the first step."""
        return max(math.floor(mark * self.steps_per_epoch + Fraction(1, 2)), int(mark > 0))

    def mark_of(self, step: int) -> Fraction:
        """The mark at a step: in hundredths of an epoch, or in smaller parts if these are more than a step."""
        parts = 100
        while self.step_of(found := Fraction(round(Fraction(step * parts, self.steps_per_epoch)), parts)) != step:
            parts *= 10
        return found

    def factor(self, step: float, total: int) -> float:
        """Learning rate at `step`, as a share of its peak."""
        warm = round(self.recipe.warmup * total)
        if step < warm:
            return (step + 1) / (warm + 1)
        return 1.0 if self.recipe.schedule == "constant" else max(0.0, (total - step) / max(1, total - warm))

    @property
    def ridden(self) -> dict[str, Head]:
        """Heads that are trained along; before the first step they are untrained and left out."""
        if not self.step:
            return {}
        return self.riders.heads | ({} if self.lead is None else {self.lead_name: self.lead})

    def start_from(self, solved: dict[str, Head]) -> bool:
        """Initialise the lead, if that is still to be done, with a head that was solved on the same states."""
        found = solved.get(self.lead_name)
        if self.lead is None or self.led or found is None or found.trained:
            return False
        self.lead.load_state_dict(found.state_dict())
        self.led = True
        return True

    def advance(
        self, until: int, total: int, after_step: Callable[[float], None], over: Callable[[], float] = never
    ) -> None:
        """Train up to optimiser step `until` of `total`; `after_step` gets each step's loss and may interrupt. `over`
        is the share of the time that is over: the learning rate follows steps or time, whichever is further. Where time
        is up the loop ends."""
        self.encoder.train(self.recipe.dropout)  # dropout is all that training mode changes in an encoder
        if self.lead is not None:
            self.lead.train()
        while self.step < until:
            epoch, within = divmod(self.step, self.steps_per_epoch)
            batches = bucketed(self.windows.lengths, self.batch_size, self.recipe.seed, epoch)
            size = self.recipe.accumulate
            groups = [batches[i : i + size] for i in range(0, len(batches), size)]
            for group in groups[within : within + until - self.step]:
                passed = over()
                if passed >= 1:
                    return
                started = time.perf_counter()
                loss = self._train_step(group, self.factor(max(self.step, passed * total), total))
                self.step += 1
                self.seconds["loop"] += time.perf_counter() - started
                after_step(loss)

    def _train_step(self, group: list[np.ndarray], factor: float) -> float:
        examples = sum(len(rows) for rows in group)
        total = 0.0
        for rows in group:
            batch = self.encoder.batch(self.windows, rows)
            here, device = torch.from_numpy(rows), self.encoder.device
            targets = self.targets[here].to(device)
            ranks, weights = (
                None if values is None else values[here].to(device) for values in (self.ranks, self.weights)
            )
            started = time.perf_counter()
            logits, layers, pooled = self.encoder(batch.inputs)
            share = len(rows) / examples
            logits = confined(logits.float(), places_of(batch.segments) if self.shape.span else None)
            losses = self.losses(logits, targets)
            if self.lead is not None:
                losses = losses + self.losses(self.lead(read(batch, layers, pooled, self.reads)), targets)
            loss = (losses if weights is None else losses * weights).mean() * share
            self.accelerator.backward(loss)
            self.seconds["encoder"] += time.perf_counter() - started
            total += float(loss.detach())
            started = time.perf_counter()
            if self.riders.heads:
                with torch.no_grad():
                    detached = [layer.detach() for layer in layers]
                    states = read(batch, detached, pooled.detach() if pooled is not None else None, self.reads)
                self.riders.accumulate(states, targets, share, ranks, weights)
            self.seconds["heads"] += time.perf_counter() - started
        started = time.perf_counter()
        if self.recipe.clip:
            torch.nn.utils.clip_grad_norm_(self.parameters, self.recipe.clip)
        for settings in self.optimizer.param_groups:
            settings["lr"] = self.lr * factor
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.seconds["encoder"] += time.perf_counter() - started
        started = time.perf_counter()
        self.riders.step(factor)
        self.seconds["heads"] += time.perf_counter() - started
        return total

    def tensors(self) -> dict[str, Tensor]:
        """Everything that decides how training goes on, as flat tensors."""
        state = {f"encoder.{name}": value for name, value in self.encoder.model.state_dict().items()}
        for name, head in self.riders.heads.items():
            state |= {f"head/{name}/{key}": value for key, value in head.state_dict().items()}
        if self.lead is not None:
            state |= {f"lead/{key}": value for key, value in self.lead.state_dict().items()}
        for label, optimizer in (("encoder", self.optimizer), ("heads", self.riders.optimizer)):
            if optimizer is not None:
                for index, moments in optimizer.state_dict()["state"].items():
                    state |= {f"optimizer.{label}.{index}.{key}": value for key, value in moments.items()}
        state["random.encoder"] = torch.get_rng_state()
        if torch.cuda.is_available():
            state["random.device"] = torch.cuda.get_rng_state()
        for name, stream in self.riders.random.items():
            state[f"random/head/{name}"] = stream.state
            state |= {f"random/device/{name}/{i}": value for i, value in enumerate(stream.device_states)}
        return state

    def restore(self, state: dict[str, Tensor], step: int) -> None:
        def part(prefix: str) -> dict[str, Tensor]:
            return {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}

        self.encoder.model.load_state_dict(part("encoder."))
        for name, head in self.riders.heads.items():
            head.load_state_dict(part(f"head/{name}/"))
        if self.lead is not None:
            self.lead.load_state_dict(part("lead/"))
            self.led = True
        for label, optimizer in (("encoder", self.optimizer), ("heads", self.riders.optimizer)):
            if optimizer is not None:
                moments: dict[int, dict[str, Tensor]] = {}
                for key, value in part(f"optimizer.{label}.").items():
                    index, name = key.split(".")
                    moments.setdefault(int(index), {})[name] = value
                optimizer.load_state_dict({"state": moments, "param_groups": optimizer.state_dict()["param_groups"]})
        torch.set_rng_state(state["random.encoder"])
        for name, stream in self.riders.random.items():
            stream.state = state[f"random/head/{name}"]
            stream.device_states = list(part(f"random/device/{name}/").values())
        if "random.device" in state:
            torch.cuda.set_rng_state(state["random.device"])
        self.step = step


def loop_of(setting: Prepared, heads: dict[str, Head], accelerator: Accelerator) -> Loop:
    """A loop with the lead that the recipe names; all other heads that learn by gradients are trained along."""
    lead, recipe = lead_of(setting), setting.recipe
    riding = {name: head for name, head in heads.items() if head.trained and name not in lead}
    riders = HeadTrainer(riding, setting.dataset.kind, lr=recipe.head_lr, seed=recipe.seed)
    return Loop(setting, riders, accelerator, next(iter(lead.values()), None))
