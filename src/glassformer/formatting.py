"""Human-readable durations, counts and sizes."""


def duration(seconds: float) -> str:
    """Format a duration in seconds, minutes or hours.

    >>> duration(8.41), duration(75), duration(5400)
    ('8.4 s', '1 min 15 s', '1 h 30 min')
    """
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    if seconds < 3599.5:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest:02} s"
    hours, rest = divmod(round(seconds / 60), 60)
    return f"{hours} h {rest:02} min"


def count(n: int) -> str:
    """Format a count with one decimal and the suffix k, M or G.

    >>> count(950), count(63_082_496), count(1_234)
    ('950', '63.1 M', '1.2 k')
    """
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if n >= 0.99995 * size:
            return f"{n / size:.1f} {unit}"
    return str(n)


def size(n_bytes: float) -> str:
    """Format a number of bytes with one decimal and a binary unit.

    >>> size(512), size(5 * 2**20)
    ('512 bytes', '5.0 MiB')
    """
    for unit, n in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if n_bytes >= n:
            return f"{n_bytes / n:,.1f} {unit}"
    return f"{n_bytes:,.0f} bytes"
