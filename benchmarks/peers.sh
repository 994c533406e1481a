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

# Not flwr 1.42.0: when it was tried, pip found no certifi that it accepts.
requirements() {
  case $1 in
    pfl) echo "pfl==0.6.0" ;;
    fluke) echo "fluke-fl==0.8.1" ;;
    fedlab) echo "fedlab==1.3.0" ;;
    flower) echo "flwr[simulation]==1.41.0" ;;
    *) echo "unknown peer $1: use pfl, fluke, fedlab or flower" >&2 && return 1 ;;
  esac
}

[ $# -gt 0 ] || set -- pfl fluke fedlab flower
for peer in "$@"; do
  wanted=$(requirements "$peer")
  folder=.venv-peers/$peer
  rm -rf "$folder"
  "$main" -m venv "$folder"
  python=$folder/bin/python
  packages "$main" >"$(packages "$python")/main-environment.pth"
  if "$python" -m pip install --constraint benchmarks/peers.txt "$wanted" >"$folder/install.log" 2>&1; then
    echo "$peer: $wanted with torch $(version "$python") (main environment: $(version "$main"))"
  else
    echo "$peer: not installed, see $folder/install.log"
    grep ERROR "$folder/install.log" | cut -c 1-200 || true
    rm "$python"
  fi
done
