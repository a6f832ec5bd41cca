"""The batches of a measurement, dealt out among processes."""


class Division:
    """One process, which measures everything; `distributed.process_group.ProcessGroup` is one of several.

    Process r of n takes the batches r, r + n, r + 2n, … What they found is put together in the order of the batches,
    so that sums have the same bits as in one process.
    """

    rank, n = 0, 1
    holds_parts = False
    """Whether a process holds parts of the weights, so that all processes must run the same number of forwards."""

    def takes(self, number: int) -> bool:
        """Whether this process takes the batch of this number, from 0."""
        return number % self.n == self.rank

    def sum(self, *numbers: float) -> list[float]:
        """Each number, summed over the processes."""
        return list(numbers)

    def texts(self, text: str) -> list[str]:
        """The text of every process, in the order of their ranks."""
        return [text]


ALONE = Division()
