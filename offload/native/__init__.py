"""Our own layout on a store: places, anchors, fragments, and the offloader that puts them together."""
