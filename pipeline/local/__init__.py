"""What runs on a laptop: the emulators, a simulated fleet, a publisher of files, and the demo that uses all of them."""
