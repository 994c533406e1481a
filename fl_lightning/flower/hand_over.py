"""Pass the options of ``flwr-clientapp`` on to the launcher. It starts fast, because it imports little.

Arguments: the launcher's socket, the path on which Flower's own command is found, then the options.
"""

import json
import os
import socket
import sys


def main() -> None:
    """Send the options, or run Flower's own command if there is no launcher."""
    address, path, *options = sys.argv[1:]
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(address)
            connection.sendall(json.dumps(options).encode())
    except OSError:
        os.environ["PATH"] = path
        os.execvp("flwr-clientapp", ["flwr-clientapp", *options])


if __name__ == "__main__":
    main()
