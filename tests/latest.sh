#!/usr/bin/env bash
# Contracts and one learning test on the newest Python found, with the newest JAX that the dependency range allows.
# A Python is looked for on PATH and under pyenv; without one newer than 3.11 there is nothing to check.
set -euo pipefail
cd "$(dirname "$0")/.."

works() { "$1" -c 'import sys; sys.exit(not (3, 12) <= sys.version_info < (3, 14))' 2>/dev/null; }

python=""
for candidate in python3.13 python3.12 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.13.*/bin/python3 \
    "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.12.*/bin/python3; do
    if works "$candidate"; then python=$candidate; break; fi
done
if [ -z "$python" ]; then
    echo "test-latest: skipped, no Python 3.12 or 3.13 on PATH or under pyenv"
    exit 0
fi

venv=.venv-latest
[ -d "$venv" ] || "$python" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --upgrade pip
"$venv/bin/python" -m pip install --quiet --upgrade --upgrade-strategy eager --editable '.[dev]'
"$venv/bin/python" -c 'import sys, jax, flax; print("test-latest: Python", sys.version.split()[0], "jax", jax.__version__, "flax", flax.__version__)'
timeout 1500 "$venv/bin/python" -m pytest -n 2 tests/test_learning.py tests/test_training.py tests/test_rollout.py \
    tests/advantages tests/losses tests/algorithms
