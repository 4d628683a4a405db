"""What pytest collects in a run of the black box. Collected anew in each, by `box`; not for import."""

from __future__ import annotations

from offload_conformance.boxed import backend_class

TestBackend = backend_class()
