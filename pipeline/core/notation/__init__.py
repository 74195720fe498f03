"""How values are written and read: text, times, durations, exact numbers, values of cells."""
