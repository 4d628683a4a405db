"""RabbitMQ's classic queues, read from the files of a stopped node: formats, recovery, source, commands."""
