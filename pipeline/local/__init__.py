"""Tools for local use: the emulators, a simulated fleet, a publisher of files, and the demo."""
