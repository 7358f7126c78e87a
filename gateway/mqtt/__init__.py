"""MQTT protocol core: bytes <-> packets. No I/O, no clock."""
