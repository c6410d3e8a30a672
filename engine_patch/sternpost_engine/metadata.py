"""What travels between the scheduler and the workers, in vLLM's envelopes."""

from __future__ import annotations

from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorWorkerMetadata

from sternpost_engine.operations import Built, Operations


@dataclass
class StepMetadata(KVConnectorMetadata):
    """One step's operations, on their way to the workers."""

    operations: Operations


@dataclass
class OutcomeMetadata(KVConnectorWorkerMetadata):
    """
    What the workers did, on its way to the scheduler.

    How many workers hold each tail or sample whole, which ones failed, and the requests to whose blocks a
    worker could not copy a tail.
    """

    completed: dict[Built, int]
    failed: set[Built]
    not_copied: set[str] = field(default_factory=set)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> OutcomeMetadata:
        """Add another worker's outcome."""
        assert isinstance(other, OutcomeMetadata)
        completed = {
            built: self.completed.get(built, 0) + other.completed.get(built, 0)
            for built in self.completed.keys() | other.completed.keys()
        }
        return OutcomeMetadata(completed, self.failed | other.failed, self.not_copied | other.not_copied)
