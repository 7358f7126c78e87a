"""What an operator sees and changes of a gateway while it runs."""
