"""The broker's figures for tools: runtime information, statistics."""
