"""Pairs of parameters of glassformer and of a reference model: copy the values and compare the gradients."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tolerances import assert_close


@dataclass(frozen=True)
class Pair:
    ours: nn.Parameter
    theirs: nn.Parameter
    rows: slice | None = None
    transposed: bool = False

    def part(self, theirs: Tensor) -> Tensor:
        """Return the part of the reference tensor that corresponds to the parameter of glassformer."""
        theirs = theirs.mT if self.transposed and theirs.dim() == 2 else theirs
        return theirs if self.rows is None else theirs[self.rows]


class Pairs:
    """A mapping that must cover both models completely: every parameter has its counterpart.

    `without`: prefixes of glassformer's parameters that the reference lacks and that the comparison does not use.
    """

    def __init__(self, ours: nn.Module, theirs: nn.Module, without: tuple[str, ...] = ()) -> None:
        self.ours, self.theirs, self.without = ours, theirs, without
        self.pairs: list[Pair] = []

    def module(self, ours: str, theirs: str, rows: slice | None = None, transposed: bool = False) -> None:
        """Pair weight and bias of two linear layers, tables or norms by their paths."""
        mine, other = self.ours.get_submodule(ours), self.theirs.get_submodule(theirs)
        self.parameter(mine.weight, other.weight, rows, transposed)
        bias = getattr(mine, "bias", None)
        assert (bias is None) == (getattr(other, "bias", None) is None), (ours, theirs)
        if bias is not None:
            self.parameter(bias, other.bias, rows)

    def parameter(
        self, ours: nn.Parameter, theirs: nn.Parameter, rows: slice | None = None, transposed: bool = False
    ) -> None:
        self.pairs.append(Pair(ours, theirs, rows, transposed))

    @torch.no_grad()
    def copy(self) -> None:
        """Copy the reference weights into glassformer's model; raise if a parameter of either model has no pair."""
        mine, theirs = {pair.ours for pair in self.pairs}, {pair.theirs for pair in self.pairs}
        needed = {n: p for n, p in self.ours.named_parameters() if not n.startswith(self.without)}
        forgotten = [name for name, p in needed.items() if p not in mine]
        trained = {name: p for name, p in self.theirs.named_parameters() if p.requires_grad}
        forgotten += [name for name, p in trained.items() if p not in theirs]
        assert not forgotten, forgotten
        for pair in self.pairs:
            value = pair.part(pair.theirs)
            assert value.shape == pair.ours.shape, (value.shape, pair.ours.shape)
            pair.ours.copy_(value)

    def assert_equal_gradients(self) -> None:
        expected = [pair.part(pair.theirs.grad) for pair in self.pairs if pair.theirs.grad is not None]
        assert_close([pair.ours.grad for pair in self.pairs], expected)
