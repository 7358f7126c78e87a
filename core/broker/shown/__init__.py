"""What tools are shown of the broker: runtime figures, statistics."""
