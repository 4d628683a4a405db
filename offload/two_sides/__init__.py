"""One reader of a source's disk and the tier, from the first message on either to the newest."""
