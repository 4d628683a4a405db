"""Logs that take appends: in a folder that RabbitMQ reads, and in memory."""
