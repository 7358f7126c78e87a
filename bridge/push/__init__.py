"""The push consumer: calls the user's function with messages, and retries those that fail."""
