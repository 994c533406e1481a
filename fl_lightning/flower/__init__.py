"""A federation on several machines, through Flower. Importing this folder imports neither flwr nor Lightning."""
