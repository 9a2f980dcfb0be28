"""Where the time of a training step goes: data, forward, backward, optimiser."""

import time
from dataclasses import dataclass, field

import torch

PHASES = ("data", "forward", "backward", "optimiser")
WARM_UP = 2
"""First steps that are not counted: they compile kernels and allocate the optimiser's state."""


@dataclass
class PhaseClock:
    """Sums seconds per phase. `start` opens a step, `end(phase)` closes a phase at the moment it is called.

    On CUDA every end waits for the device, so that a phase is charged with what it launched.
    """

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    steps: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    _since: float = 0.0

    def start(self) -> None:
        self.steps += 1
        self._since = self._now()

    def end(self, phase: str) -> None:
        now = self._now()
        if self.steps > WARM_UP:
            self.seconds[phase] += now - self._since
        self._since = now

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def shares(self) -> dict[str, float]:
        """Each phase's share of a step, summing to 1; NaN where no step was counted."""
        total = sum(self.seconds.values())
        return {phase: spent / total if total else float("nan") for phase, spent in self.seconds.items()}

    def __str__(self) -> str:
        counted = self.steps - WARM_UP
        if counted < 1:
            return f"no step was timed: the first {WARM_UP} do not count"
        parts = ", ".join(f"{phase} {100 * share:.1f} %" for phase, share in self.shares().items())
        return f"a step takes {1e3 * sum(self.seconds.values()) / counted:.2f} ms over {counted} steps: {parts}"
