"""Figures for Prometheus, in a registry of the application's own."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_TOKENS = (64, 256, 1024, 2048, 4096, 8192, 16384, 32768, 131072)


class Metrics:
    """Counters and histograms; labels take names that the operator chose, never a client's."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "rag_middle_requests",
            "Requests by endpoint, method and status.",
            ["endpoint", "method", "status"],
            registry=self.registry,
        )
        self.missing_documents = Counter(
            "rag_middle_missing_documents",
            "Prompts without documents under a method that needs some: it could not act.",
            ["method"],
            registry=self.registry,
        )
        self.refused = self._counter("refused_for_load", "Requests refused with status 429.")
        self.cancelled = self._counter("cancelled", "Answers whose client left.")
        self.prompt_tokens = self._counter("prompt_tokens", "Tokens of prompts.")
        self.new_tokens = self._counter("new_tokens", "Generated tokens.")
        self.seconds = self._histogram(
            "request_seconds",
            "From a request to its answer, or to the beginning of a stream.",
            _SECONDS,
        )
        self.first_token = self._histogram(
            "first_token_seconds", "From a batch's start to its first token.", _SECONDS
        )
        self.batch_seconds = self._histogram("batch_seconds", "Of a batch.", _SECONDS)
        self.batch_size = self._histogram(
            "batch_size", "Answers in a batch.", (1, 2, 4, 8, 16, 32, 64)
        )
        self.prompt_length = self._histogram("prompt_length_tokens", "Of a prompt.", _TOKENS)

    def watch_queue(self, waiting: Callable[[], int], running: Callable[[], int]) -> None:
        """Ask for the length of a queue whenever figures are read."""
        for name, count in (("waiting", waiting), ("running", running)):
            gauge = Gauge(f"rag_middle_{name}", f"Answers that are {name}.", registry=self.registry)
            gauge.set_function(count)

    def text(self) -> bytes:
        """All figures, in Prometheus' format."""
        return generate_latest(self.registry)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"rag_middle_{name}", text, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"rag_middle_{name}", text, buckets=buckets, registry=self.registry)
