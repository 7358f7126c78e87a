"""MQTT topic names and properties <-> topics and properties of the log."""
