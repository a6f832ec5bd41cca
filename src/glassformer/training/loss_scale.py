"""The scale of the loss in fp16."""

from dataclasses import asdict, dataclass
from typing import Any

GROWTH_INTERVAL = 2000
SMALLEST_SCALE = 2.0**-10


@dataclass
class LossScale:
    """The factor that keeps small gradients within fp16 (Micikevicius 2018, section 3.2).

    Halved by a gradient that runs over, doubled after `GROWTH_INTERVAL` steps without.
    """

    factor: float = 65536.0
    n_good_steps: int = 0

    def update(self, is_finite: bool) -> None:
        self.n_good_steps = self.n_good_steps + 1 if is_finite else 0
        if not is_finite:
            self.factor /= 2
        elif self.n_good_steps == GROWTH_INTERVAL:
            self.factor, self.n_good_steps = 2 * self.factor, 0

    def state(self) -> dict[str, Any]:
        return asdict(self)
