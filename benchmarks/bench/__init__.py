"""``make bench`` compares Tidetable's speed with alternatives, on one machine and in one session.

The same pregenerated events go to the same Bigtable emulator, each time to a new table that is checked afterwards.
Every program of the comparison is one process for the whole session: it imports, generates its events and warms up
with one run before it is timed. Programs take turns, so a busy machine affects all of them.

The measured time is from the first message handed to the program until its last row is confirmed. It excludes imports,
generating events, building a Beam pipeline (not its run) and, if the program holds it itself, the channel; Beam's
connectors open theirs during the run. Everything that a program reads and computes with Beam is included.
"""
