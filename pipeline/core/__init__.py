"""Events, rows, statistics and dead letters: functions on plain data that need neither Beam nor a server."""
