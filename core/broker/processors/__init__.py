"""One request family of the remoting protocol per module."""
