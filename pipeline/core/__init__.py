"""Events, rows, statistics and dead letters: functions on plain data, without Beam and without servers."""
