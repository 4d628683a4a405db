"""What others implement or are called with: stores, sources, offloaders, decoders, plugins, events."""
