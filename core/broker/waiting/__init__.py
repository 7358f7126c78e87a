"""Requests with a later answer: held pulls, reads from the disk, gates."""
