"""A server of RabbitMQ's stream protocol over the streams of a tier (decision 41)."""
