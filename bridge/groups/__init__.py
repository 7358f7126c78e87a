"""Consumer groups: which member reads which queues."""
