"""The findings and actions of a start: damage, repaired and rebuilt queues, bytes cut or moved.

Owns: RecoveryReport and Damage, shared by both halves of a start (recovery, queue_recovery).
Must not touch: files.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from motelog.core.store.log.mapped_file_queue import MappedFile

QueueKey = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes of the log that are not records although the log continues after them."""

    path: str
    offset_bytes: int
    physical_offset: int
    size: int
    reason: str


@dataclass(slots=True)
class RecoveryReport:
    """What a start found and did."""

    was_clean: bool = True
    scanned_from: int = 0
    end_offset: int = 0
    records: int = 0
    cut_bytes: int = 0  # zeroed after the log's end, in the same file
    given_up_records: int = 0  # intact ones after the end: a crash left a hole before them
    given_up_bytes: int = 0
    lost_bytes: int = 0  # in all of ``damage``
    damage: list[Damage] = field(default_factory=list)
    repaired_queues: list[QueueKey] = field(default_factory=list)
    rebuilt_queues: list[QueueKey] = field(default_factory=list)
    index_fault: str = ""  # why index files are rebuilt, and from which physical offset
    index_from: int = 0
    moved_aside: list[str] = field(default_factory=list)

    def note_damage(self, file: MappedFile, begin: int, size: int, reason: str) -> None:
        """Note bytes of ``file`` from the physical offset ``begin`` on, unless noted before."""
        if any(known.physical_offset == begin for known in self.damage):
            return
        self.lost_bytes += size
        self.damage.append(Damage(file.path, begin - file.begin, begin, size, reason))

    def note_repaired(self, key: QueueKey) -> None:
        if key not in self.repaired_queues:
            self.repaired_queues.append(key)
