"""The figures of a job's run: rates, lag, devices, from its recorded progress.

Owns: reading the record (spark.jobs.record), Report. Must not touch: pyspark; how the page looks
(report_page).
A batch's lag is the number of messages that waited when it was planned: those that it read and
those that it left. Its delay is the age of its oldest message when all were written.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from motelog.spark.errors import SourceError
from motelog.spark.jobs.record import RECORD_NAME, older

#: The name of the metrics that ``spark.jobs.running`` makes Spark collect for each batch.
OBSERVED: Final = "motelog"
BUSIEST: Final = 20


class NoRecordError(SourceError):
    """There is nothing to report on."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch that has read messages; ``lag``, ``delay_s`` and ``devices`` if they are known."""

    run: str
    number: int
    begin: datetime
    seconds: float
    messages: int
    lag: int | None
    delay_s: float | None
    devices: int | None
    busiest: Mapping[str, int]

    @property
    def messages_per_s(self) -> float:
        return self.messages / max(self.seconds, 0.001)


@dataclass(frozen=True, slots=True)
class Report:
    """The batches of a record in order of their numbers; ``damaged`` counts skipped lines."""

    job: str
    topics: tuple[str, ...]
    batches: tuple[Batch, ...]
    damaged: int

    def as_json(self) -> dict[str, Any]:
        """Return the report for scripts."""
        batches = self.batches
        busy_s = sum(batch.seconds for batch in batches)
        lags = [batch.lag for batch in batches if batch.lag is not None]
        return {
            "job": self.job,
            "topics": list(self.topics),
            "begin": _text(batches[0].begin),
            "end": _text(max(batch.begin for batch in batches)),
            "runs": len({batch.run for batch in batches}),
            "batches": len(batches),
            "damaged_lines": self.damaged,
            "messages": sum(batch.messages for batch in batches),
            "messages_per_s": {
                "mean": _round(sum(batch.messages for batch in batches) / max(busy_s, 0.001)),
                "max": _round(max(batch.messages_per_s for batch in batches)),
            },
            "batch_s": _spread([batch.seconds for batch in batches]),
            "lag": {"last": lags[-1], "max": max(lags)} if lags else None,
            "delay_s": _spread([one.delay_s for one in batches if one.delay_s is not None]),
            "devices": max((one.devices for one in batches if one.devices is not None), default=0),
            "busiest": [{"device": device, "messages": count} for device, count in self.busiest()],
        }

    def busiest(self) -> list[tuple[str, int]]:
        """Return the devices with most messages, among the busiest ones of each batch."""
        found: Counter[str] = Counter()
        for batch in self.batches:
            found.update(batch.busiest)
        return found.most_common(BUSIEST)


def read_report(path: Path) -> Report:
    """Return the report for a checkpoint folder, or for a file of progress events."""
    file = path / RECORD_NAME if path.is_dir() else path
    lines: list[bytes] = []
    for part in (older(file), file):
        try:
            lines += part.read_bytes().splitlines()
        except FileNotFoundError:
            continue
        except OSError as exc:
            raise NoRecordError(f"{part}: {exc.strerror}") from None
    if not lines:
        raise NoRecordError(f"{file} does not exist or is empty: no batch of a job was recorded")
    return report_of(lines, str(file))


def report_of(lines: Iterable[bytes], name: str) -> Report:
    """Return the report for lines of progress events; errors call them ``name``."""
    batches: dict[int, Batch] = {}
    topics: dict[str, None] = {}
    job, damaged = "", 0
    for line in filter(None, lines):
        try:
            event = json.loads(line)
            batch = read_batch(event)
            offsets = _offsets(event, "endOffset")
        except (ValueError, KeyError, TypeError, AttributeError):
            damaged += 1
            continue
        job = event.get("name") or job
        topics.update(dict.fromkeys(offsets))
        # For a repeated batch the last run counts.
        batches[batch.number] = batch
    if not batches:
        raise NoRecordError(f"{name} has no progress events of Spark")
    ordered = tuple(batches[number] for number in sorted(batches))
    return Report(job or "a query without a name", tuple(topics), ordered, damaged)


def read_batch(event: Mapping[str, Any]) -> Batch:
    """Return the batch of a progress event; KeyError and others if it is not such an event."""
    begin = _time(event["timestamp"])
    seconds = event["durationMs"]["triggerExecution"] / 1000
    seen: Mapping[str, Any] = (event.get("observedMetrics") or {}).get(OBSERVED) or {}
    oldest = seen.get("oldest")
    delay_s = None
    if oldest is not None:
        delay_s = max(0.0, (begin - _time(oldest)).total_seconds() + seconds)
    return Batch(
        str(event["runId"]),
        int(event["batchId"]),
        begin,
        seconds,
        int(event["numInputRows"]),
        _lag(event),
        delay_s,
        seen.get("devices"),
        {one["item"]: one["count"] for one in seen.get("busiest") or () if one["item"] is not None},
    )


def _lag(event: Mapping[str, Any]) -> int | None:
    end, latest = (_offsets(event, name) for name in ("endOffset", "latestOffset"))
    if not end or not latest:
        return None
    return int(event["numInputRows"]) + sum(
        max(0, offset - end.get(topic, {}).get(queue, 0))
        for topic, queues in latest.items()
        for queue, offset in queues.items()
    )


def _offsets(event: Mapping[str, Any], name: str) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for source in event["sources"]:
        document = source.get(name) or {}
        # Spark shows a JSON document as it is, and one that it cannot parse as text.
        document = json.loads(document) if isinstance(document, str) else document
        if isinstance(document, dict):
            found.update((topic, dict(queues)) for topic, queues in document.items())
    return found


def _time(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _text(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _spread(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    ordered = sorted(values)
    last = len(ordered) - 1
    picked = {"p50": last // 2, "p99": round(last * 0.99), "max": last}
    return {name: _round(ordered[index]) for name, index in picked.items()}


def _round(value: float) -> float:
    return round(value, 3)
