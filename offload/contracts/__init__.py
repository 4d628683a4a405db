"""The contracts that others implement or call: stores, sources, offloaders, decoders, plugins, events."""
