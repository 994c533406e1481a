#!/usr/bin/env bash
# Set up the environments of the other simulators that benchmarks/simulators compares with.
#
#   benchmarks/peers.sh [PEER ...]        all of them by default: pfl fluke fedlab flower
#
# Every peer gets an environment of its own, .venv-peers/PEER, because their requirements exclude one another. A .pth
# file in it makes the packages of the main environment visible, so that all contestants share one torch build and it is
# installed once. What a peer requires in another version is installed into its own environment and comes first.
# PYTHON names the main environment's interpreter, by default .venv/bin/python.
set -euo pipefail
cd "$(dirname "$0")/.."
main=${PYTHON:-.venv/bin/python}
version() { "$1" -c 'import torch; print(torch.__version__)'; }
packages() { "$1" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])'; }

requirements() {
  case $1 in
    pfl) echo "pfl==0.6.0" ;;
    fluke) echo "fluke-fl==0.8.1" ;;
    fedlab) echo "fedlab==1.3.0" ;;
    flower) echo "flwr[simulation]==1.41.0" ;;
    *) echo "unknown peer $1: use pfl, fluke, fedlab or flower" >&2 && return 1 ;;
  esac
}

for peer in "${@:-pfl fluke fedlab flower}"; do
  for name in $peer; do
    wanted=$(requirements "$name")
    folder=.venv-peers/$name
    rm -rf "$folder"
    "$main" -m venv "$folder"
    packages "$main" >"$(packages "$folder/bin/python")/main-environment.pth"
    if ! "$folder/bin/python" -m pip install --quiet --constraint benchmarks/peers.txt "$wanted" >"$folder/install.log" 2>&1; then
      echo "$name: not installed, see $folder/install.log"
      tail -3 "$folder/install.log"
      continue
    fi
    echo "$name: $wanted with torch $(version "$folder/bin/python") (main environment: $(version "$main"))"
  done
done
