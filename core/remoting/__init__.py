"""RocketMQ's remoting protocol: frames, codes, fields, both ends of a connection."""
