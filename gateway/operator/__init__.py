"""What an operator can see and change in a running gateway."""
