"""The native layout of a tier on a store: places, anchors, fragments, and the offloader that joins them."""
