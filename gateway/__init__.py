"""MQTT side of Motelog: connections, sessions, delivery. Import the module you need."""
