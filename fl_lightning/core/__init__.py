"""The foundation of all other folders: states, updates, rounds and randomness. It needs only torch and NumPy."""
