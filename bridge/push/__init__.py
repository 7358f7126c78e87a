"""The push consumer: messages are handed to a function of the user, and its errors are retries."""
