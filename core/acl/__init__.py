"""RocketMQ's access control: who may ask a broker or a name server for what."""
