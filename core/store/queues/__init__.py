"""ConsumeQueues: units per topic and queue id."""
