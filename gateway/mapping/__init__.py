"""MQTT topics and properties as the log has them, and back."""
