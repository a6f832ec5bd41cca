"""Numbers of the server in the text format of Prometheus."""

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics:
    """Counters, gauges and histograms, all with the prefix `glassformer_`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        where: dict[str, Any] = {"registry": self.registry, "namespace": "glassformer"}
        self.requests = Gauge("requests", "Requests that are answered or wait", **where)
        self.waiting = Gauge("waiting_requests", "Requests for texts that wait for a free row", ["model"], **where)
        self.answers = Counter("answers", "Answers by path and status", ["path", "status"], **where)
        self.seconds = Histogram("request_seconds", "Time of a request", ["path"], buckets=SECONDS, **where)
        self.prompt_tokens = Counter("prompt_tokens", "Tokens of prompts", **where)
        self.shared_tokens = Counter("shared_tokens", "Tokens of prompts that were not read again", **where)
        self.new_tokens = Counter("new_tokens", "Tokens that were generated", **where)
        self.first = Histogram("first_token_seconds", "Time to the first token of a text", buckets=SECONDS, **where)
        self.between = Histogram("between_tokens_seconds", "Time between two tokens", buckets=SECONDS, **where)
        self.rows = Histogram(
            "rows_per_step", "Texts that a step continued", buckets=(0, 1, 2, 4, 8, 16, 32, 64), **where
        )
        self.inputs = Histogram(
            "inputs_per_batch", "Inputs that a batch answered", buckets=(0, 1, 2, 4, 8, 16, 32, 64), **where
        )

    def batch(self, n_inputs: int, n_tokens: int) -> None:
        """Count a batch of inputs that are answered without an engine."""
        self.inputs.observe(n_inputs)
        self.prompt_tokens.inc(n_tokens)

    def step(self, n_tokens: int) -> None:
        """Count a step of an engine."""
        self.rows.observe(n_tokens)
        self.new_tokens.inc(n_tokens)

    def text(self) -> bytes:
        """Return all numbers."""
        return generate_latest(self.registry)
