"""The declarations of the MQTT plugin. Imports nothing of its code."""

from __future__ import annotations
