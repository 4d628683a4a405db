"""A broker whose topics are on its disk for a while, and on a tier for ever."""
