"""Requests that are answered later: held pulls, reads from the disk, gates."""
