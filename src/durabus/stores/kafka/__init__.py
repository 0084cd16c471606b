"""Kafka: one topic is the control lane, one the public lane, and compacted topics hold the newest snapshot."""
