"""What everything else is built on: states, updates, rounds, randomness. Needs torch and NumPy only."""
