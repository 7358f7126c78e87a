"""What RocketMQ's tools ask of a broker, by subject."""
