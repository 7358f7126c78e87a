"""RocketMQ's access control: which requests an account may send to a broker or a name server."""
