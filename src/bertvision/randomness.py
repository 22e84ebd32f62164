"""Random numbers with a stream of their own, so that heads never shift the encoder's dropout by one draw."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class RandomStream:
    """Inside `with stream.active():` torch draws from this stream; outside, the global one is as it was."""

    def __init__(self, *parts: object) -> None:
        # Hashed, so that neighbouring seeds and purposes give unrelated streams.
        seed = int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:7], "big")
        self.state = torch.Generator().manual_seed(seed).get_state()
        self.device_states: list[torch.Tensor] = []
        self._seed = seed

    @contextmanager
    def active(self) -> Iterator[None]:
        devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
        with torch.random.fork_rng(devices):
            torch.set_rng_state(self.state)
            if devices and self.device_states:
                torch.cuda.set_rng_state_all(self.device_states)
            elif devices:
                torch.cuda.manual_seed_all(self._seed)
            yield
            self.state = torch.get_rng_state()
            self.device_states = torch.cuda.get_rng_state_all() if devices else []
