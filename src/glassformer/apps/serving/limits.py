"""Limits of the server."""

from glassformer.config.schema import checked, setting


@checked
class Limits:
    """Limits of requests and of the server."""

    section = ""
    max_rows: int = setting(16, "number of texts that are generated at a time; others wait", "≥ 1")
    max_waiting: int = setting(64, "number of requests that are answered or wait; others get the status 429", "≥ 1")
    batch_tokens: int = setting(
        1024, "tokens of the texts that are classified, tagged, scored, translated or embedded at a time", "≥ 1"
    )
    max_n: int = setting(16, "largest number of texts, or of inputs, in one request, except for embeddings", "≥ 1")
    max_tokens: int = setting(
        4096, "largest number of new tokens per text, and of tokens of a text that is read in parts", "≥ 1"
    )
    max_body: int = setting(1 << 20, "largest body of a request in bytes", "≥ 1")
    deadline: float = setting(600.0, "seconds after which a request ends with the status 504", "> 0")
    grace: int = setting(30, "seconds that running requests have to end after SIGTERM", "≥ 1")
    prefix_mb: int = setting(512, "memory for the states of beginnings that requests share, in MB per model", "≥ 0")
