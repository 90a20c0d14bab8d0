"""Fencepost: the worker of a Kafka consumer group."""
