"""How fast Tidetable is beside what else there is: ``make bench``, on one machine and in one sitting.

The same events, made beforehand, go to the same Bigtable emulator, each time to a fresh table that is checked behind
it. Every program of the comparison is a process of its own, which stays for the whole sitting: it imports, makes its
events and runs once to warm up before it is timed. Programs take turns, so that a busy neighbour hits all of them.

What is timed: from the first message handed to the program until its last row is confirmed. Left out are imports, the
making of events, the building of a Beam pipeline (not its run) and, where the program holds it itself, the channel;
Beam's connectors open theirs inside the run. What a program reads and computes with Beam is in it, runner and all.
"""
