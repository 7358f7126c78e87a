"""Name server role: topic -> brokers and queues."""
