"""From a URL to a tier, a store, a source or a target: plugins, sessions, and the doors for programs."""
