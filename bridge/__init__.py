"""Native producers and consumers over the remoting protocol, for our brokers and Apache RocketMQ.

Owns: routes, connections, sending, pulling. Must not touch: the store, MQTT, Spark.
"""
