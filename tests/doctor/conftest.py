from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread_and_seed() -> Iterator[None]:
    """Use one thread, which is faster for tensors of this size, and a fixed seed."""
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(n_threads)
