"""Histograms of durations, as in the column `buckets` of the tables `latency` and `syscalls`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Optional

#: Index of the open-ended bucket.
LAST = 136


def edge(bucket: int) -> int:
    """Least duration in a bucket, ns. Each octave above 64 ns has four buckets."""
    return 0 if bucket < 1 else (4 + (bucket - 1) % 4) << ((bucket - 1) // 4 + 4)


def middle(bucket: int) -> float:
    """Middle of a bucket, ns: within 12.5 % of its durations, except below 64 ns."""
    return float(edge(bucket)) if bucket >= LAST else (edge(bucket) + edge(bucket + 1)) / 2


class Histogram:
    """Durations in ns. `+` merges histograms."""

    __slots__ = ("buckets", "count", "max_ns", "sum_ns")

    def __init__(
        self, buckets: Sequence[int], *, sum_ns: Optional[int] = None, max_ns: Optional[int] = None
    ) -> None:
        self.buckets = [int(count) for count in buckets]
        self.count = sum(self.buckets)
        #: Exact sum and maximum of the durations; None if unknown.
        self.sum_ns = sum_ns
        self.max_ns = max_ns

    def __add__(self, other: Histogram) -> Histogram:
        return merge([self, other])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Histogram):
            return NotImplemented
        return (self.buckets, self.sum_ns, self.max_ns) == (other.buckets, other.sum_ns, other.max_ns)

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return self.count

    def __repr__(self) -> str:
        if not self.count:
            return "Histogram(empty)"
        return f"Histogram({self.count} durations, median {self.median}, 99 % {self.percentile(99)}, max {self.max_ns} ns)"

    def percentile(self, percent: float) -> Optional[float]:
        """The middle of the bucket with this percentile, at most the maximum, in ns; None if empty."""
        if not 0 <= percent <= 100:
            raise ValueError(f"{percent} is not between 0 and 100")
        wanted = max(percent / 100 * self.count, 1)
        seen = 0
        for bucket, count in enumerate(self.buckets):
            seen += count
            if seen >= wanted:
                value = middle(bucket)
                return value if self.max_ns is None else min(value, float(self.max_ns))
        return None

    @property
    def median(self) -> Optional[float]:
        return self.percentile(50)

    @property
    def mean(self) -> Optional[float]:
        """Exact mean in ns, if the sum is known."""
        return self.sum_ns / self.count if self.count and self.sum_ns is not None else None


def merge(histograms: Iterable[Histogram]) -> Histogram:
    """The sum of histograms."""
    buckets: list[int] = []
    total: Optional[int] = 0
    longest: Optional[int] = 0
    for one in histograms:
        buckets += [0] * (len(one.buckets) - len(buckets))
        for bucket, count in enumerate(one.buckets):
            buckets[bucket] += count
        total = None if total is None or one.sum_ns is None else total + one.sum_ns
        longest = None if longest is None or one.max_ns is None else max(longest, one.max_ns)
    return Histogram(buckets, sum_ns=total, max_ns=longest)
