"""Division of the batches of a measurement among processes: sharding of evaluation data."""


class Division:
    """Division for one process, which measures everything; `distributed.process_group.ProcessGroup` has several.

    The batches are sharded: process r of n takes the batches r, r + n, r + 2n, … (strided, as `DistributedSampler`
    takes examples, but without padding). The results are combined in the order of the batches, so that sums are
    bit-identical to those of one process.
    """

    rank, n = 0, 1
    holds_parts = False
    """True if the weights are sharded (FSDP): a process holds parts of them, and all must run as many forwards."""

    def takes(self, number: int) -> bool:
        """Return True if this process takes the batch with this number, counted from 0."""
        return number % self.n == self.rank

    def sum(self, *numbers: float) -> list[float]:
        """Return each number summed over the processes (all-reduce)."""
        return list(numbers)

    def texts(self, text: str) -> list[str]:
        """Return the text of every process, in the order of the ranks (all-gather)."""
        return [text]


ALONE = Division()
