"""The broker and what every role shares."""
