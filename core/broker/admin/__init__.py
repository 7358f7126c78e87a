"""The requests of RocketMQ's tools to a broker, by subject."""
